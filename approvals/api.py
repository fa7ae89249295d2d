"""The API of approvals: look, and decide about exactly what was shown.

Only people decide: with a session, never with a token.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.urls import path
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from approvals import decisions, queries
from approvals.errors import AlreadyDecided, TokenMayNotDecide
from approvals.models import Approval, Decision
from approvals.queries import View
from approvals.rules import LONGEST_REASON
from approvals.statuses import Choice
from durable import requests
from durable.api import shown
from durable.faults import Recorded
from durable.requests import ApiView, Fields

VIEWS = ("needs_me", "waiting_for_others", "decided")
LOOK = "approvals.view_approval"


# What is shown -------------------------------------------------------------------------------


class DecisionShown(serializers.Serializer[Decision]):
    """What a person decided about one version."""

    version = serializers.IntegerField()
    actor = serializers.CharField()
    choice = serializers.CharField()
    reason = serializers.CharField()
    digest = serializers.CharField(help_text="What the person saw.")
    surface = serializers.CharField()
    at = serializers.DateTimeField()


class ApprovalRow(serializers.Serializer[Approval]):
    """One request to let one exact action happen. To decide, send back `version` and `digest`."""

    id = serializers.UUIDField()
    run = serializers.UUIDField(source="run_id")
    workflow = serializers.CharField()
    task_key = serializers.CharField()
    operation_id = serializers.UUIDField()
    version = serializers.IntegerField()
    digest = serializers.CharField()
    action = serializers.CharField()
    operation = serializers.CharField()
    key = serializers.CharField()
    title = serializers.CharField()
    target = serializers.CharField()
    amount = serializers.CharField()
    policy = serializers.CharField()
    requested_by = serializers.CharField()
    status = serializers.CharField()
    requested_at = serializers.DateTimeField()
    decide_by = serializers.DateTimeField()
    decided_at = serializers.DateTimeField(allow_null=True)
    valid_until = serializers.DateTimeField(allow_null=True)
    decisions = DecisionShown(many=True)


class ApprovalShown(ApprovalRow):
    """One request, with every value that will be sent."""

    parameters = shown.Stored()
    policy_snapshot = serializers.DictField()
    why_not = serializers.SerializerMethodField(
        help_text="Why you cannot approve this now; empty if you can."
    )

    def get_why_not(self, approval: Approval) -> str:
        request: Request = self.context["request"]
        if _by_token(request):
            return str(TokenMayNotDecide())
        return queries.why_not(cast(User, request.user), approval)


class ApprovalPage(serializers.Serializer[Any]):
    """A page of requests."""

    results = ApprovalRow(many=True)
    next = serializers.CharField(allow_null=True, help_text="Where the next page is.")


# What is sent --------------------------------------------------------------------------------


@extend_schema_field({"type": "string", "enum": [choice.value for choice in Choice]})
class ChoiceWord(requests.Text):
    """One of the two words; `decisions` refuses any other, and keeps who tried it."""


class DecideFields(Fields):
    """A decision, and what the person saw when they made it."""

    choice = ChoiceWord()
    reason = requests.Text(
        allow_blank=True, max_length=LONGEST_REASON, help_text="A rejection needs one."
    )
    version = requests.Number()
    digest = requests.Text()


class ApprovalsQuery(Fields):
    """Which requests."""

    view = serializers.ChoiceField(required=False, choices=VIEWS)
    cursor = requests.Text(required=False, help_text="From `next` of the page before.")


# The addresses -------------------------------------------------------------------------------


class Approvals(ApiView):
    """All requests."""

    rights: ClassVar = {"GET": LOOK}
    query_fields = ApprovalsQuery

    @extend_schema(
        operation_id="approvals_list",
        parameters=[ApprovalsQuery],
        responses=ApprovalPage,
        tags=["approvals"],
    )
    def get(self, request: Request) -> Response:
        """List requests of a view, by default those that wait for you, the most urgent first."""
        view: View = self.query.get("view", "needs_me")
        page = queries.inbox(
            cast(User, request.user),
            tenant=settings.TENANT,
            view=view,
            after=self.query.get("cursor"),
        )
        return shown.page(request, ApprovalRow, page.approvals, cursor=page.after)


class OneApproval(ApiView):
    """One request."""

    rights: ClassVar = {"GET": LOOK}

    @extend_schema(operation_id="approvals_show", responses=ApprovalShown, tags=["approvals"])
    def get(self, request: Request, approval_id: UUID) -> Response:
        """Show one request with everything that will be sent."""
        return _show(request, approval_id)


class Decide(ApiView):
    """The decision about one request."""

    # Who may look but not decide is refused by `decide`, which keeps the try.
    rights: ClassVar = {"POST": LOOK}

    @extend_schema(
        operation_id="approvals_decide",
        request=DecideFields,
        responses=ApprovalShown,
        tags=["approvals"],
    )
    def post(self, request: Request, approval_id: UUID) -> Response:
        """Decide about exactly what you saw, once; needs a session.

        Repeating your own decision gives 200. Where somebody was faster, the answer is 409 with
        the recorded decision.
        """
        vote = requests.body(request, DecideFields)
        try:
            decisions.decide(
                approval_id,
                person=cast(User, request.user),
                surface="api",
                by_token=_by_token(request),
                tenant=settings.TENANT,
                **vote,
            )
        except AlreadyDecided as taken:
            raise Recorded(taken, DecisionShown(taken.decision).data) from taken
        return _show(request, approval_id)


def _by_token(request: Request) -> bool:
    """Whether anything but a session let the request in."""
    return request.auth is not None


def _show(request: Request, approval_id: UUID) -> Response:
    approval = queries.for_page(approval_id, settings.TENANT)
    return Response(ApprovalShown(approval, context={"request": request}).data)


urlpatterns = [
    path("approvals/", Approvals.as_view()),
    path("approvals/<uuid:approval_id>/", OneApproval.as_view()),
    path("approvals/<uuid:approval_id>/decide/", Decide.as_view()),
]
