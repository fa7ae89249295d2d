"""Outside actions whose outcome nobody knows: look, ask again, or say what happened."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable import effects, requests
from durable.api import queries, shown
from durable.api.runs import OPERATE, VIEW
from durable.errors import NotUnknown
from durable.faults import Recorded
from durable.requests import ApiView, Fields, Nothing

OUTCOMES = ("happened", "not_happened")


class ResolveFields(Fields):
    """What a person found out. `resource_id` and `result` only go with "happened"."""

    outcome = serializers.ChoiceField(choices=OUTCOMES)
    resource_id = requests.Text(required=False, help_text="The outside service's id of it.")
    result = requests.Value(required=False, help_text="What the workflow receives.")
    reason = requests.Text(max_length=2000)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        happened = attrs["outcome"] == "happened"
        if happened and "resource_id" not in attrs:
            raise serializers.ValidationError({"resource_id": ["says what happened: needed"]})
        extra = {"resource_id", "result"} & set(attrs) if not happened else set()
        if extra:
            raise serializers.ValidationError(
                {name: ["goes only with the outcome happened"] for name in sorted(extra)}
            )
        return attrs


class Effect(ApiView):
    """One outside action."""

    rights: ClassVar = {"GET": VIEW}

    @extend_schema(operation_id="effects_show", responses=shown.EffectShown, tags=["effects"])
    def get(self, request: Request, operation_id: UUID) -> Response:
        """Show what is known about one outside action."""
        return Response(_shown(operation_id))


class Resolve(ApiView):
    """What a person found out about an outside action."""

    rights: ClassVar = {"POST": OPERATE}

    @extend_schema(
        operation_id="effects_resolve",
        request=ResolveFields,
        responses=shown.EffectShown,
        tags=["effects"],
    )
    def post(self, request: Request, operation_id: UUID) -> Response:
        """Say whether an action with an unknown outcome happened; nothing is sent.

        "It did not happen" is refused with 409, TOO_EARLY, while the first call may still land.
        """
        found = requests.body(request, ResolveFields)
        happened = found.pop("outcome") == "happened"
        say = effects.resolve_happened if happened else effects.resolve_not_happened
        try:
            say(operation_id, actor=requests.actor(request), tenant=settings.TENANT, **found)
        except NotUnknown as known:
            raise Recorded(known, _shown(operation_id)) from known
        return Response(_shown(operation_id))


class Ask(ApiView):
    """A question to the outside service."""

    rights: ClassVar = {"POST": OPERATE}

    @extend_schema(
        operation_id="effects_ask",
        request=Nothing,
        responses={202: shown.EffectShown},
        tags=["effects"],
    )
    def post(self, request: Request, operation_id: UUID) -> Response:
        """Have the outside service asked again; its answer appears among the run's events."""
        requests.body(request, Nothing)
        try:
            effects.ask_outside(operation_id, actor=requests.actor(request), tenant=settings.TENANT)
        except NotUnknown as known:
            raise Recorded(known, _shown(operation_id)) from known
        return Response(_shown(operation_id), status=202)


def _shown(operation_id: UUID) -> dict[str, Any]:
    record = queries.effect(operation_id, tenant=settings.TENANT)
    return dict(shown.EffectShown(record).data)
