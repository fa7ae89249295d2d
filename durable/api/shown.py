"""How runs, events, questions and outside actions look in answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable import canonical
from durable.canonical import JSON
from durable.errors import InvalidValue
from durable.models import Event, IdempotencyRecord, Run


@extend_schema_field({})
class Stored(serializers.Field[str, str, JSON, Any]):
    """A value that is stored as canonical JSON text. What cannot be read is shown as text."""

    def to_representation(self, value: str) -> JSON:
        try:
            return canonical.loads(value)
        except InvalidValue:
            return {"unreadable": value}


class RunRow(serializers.Serializer[Run]):
    """One line of the list of runs."""

    id = serializers.UUIDField()
    workflow = serializers.CharField()
    version = serializers.CharField()
    status = serializers.CharField()
    cancelling = serializers.SerializerMethodField(help_text="A cancel is stored and not yet done.")
    waiting_for = serializers.CharField()
    goal = serializers.CharField()
    key = serializers.CharField(source="start_key", allow_null=True)
    thread_id = serializers.CharField(allow_null=True)
    generation = serializers.IntegerField()
    priority = serializers.IntegerField()
    labels = serializers.DictField(child=serializers.CharField())
    code = serializers.CharField(help_text="Why it is blocked; empty if it is not.")
    failure_class = serializers.CharField()
    reason = serializers.CharField()
    requires_operator = serializers.BooleanField()
    wake_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    started_by = serializers.CharField()
    last_seq = serializers.IntegerField(source="lease.last_seq", help_text="Of its events.")

    def get_cancelling(self, run: Run) -> bool:
        return run.lease.cancel_requested and not run.is_final


class RunShown(RunRow):
    """One run."""

    input = Stored()
    output = Stored(allow_null=True)
    error = Stored(allow_null=True)


class EventShown(serializers.Serializer[Event]):
    """One fact of a run's log."""

    id = serializers.CharField(source="event_id")
    seq = serializers.IntegerField()
    at = serializers.DateTimeField()
    type = serializers.CharField()
    epoch = serializers.IntegerField()
    node = serializers.CharField()
    task_key = serializers.CharField()
    actor = serializers.CharField(help_text="Empty: the executor.")
    payload = Stored()
    hash = serializers.SerializerMethodField()

    def get_hash(self, event: Event) -> str:
        return bytes(event.hash).hex()


class InterruptShown(serializers.Serializer[Any]):
    """One question of a run. `answer` means something only where `status` is answered."""

    id = serializers.UUIDField()
    run = serializers.UUIDField(source="run_id")
    task_key = serializers.CharField()
    question = serializers.CharField()
    schema = Stored(allow_null=True)
    status = serializers.CharField()
    answer = Stored(allow_null=True)
    answered_by = serializers.CharField()
    answered_at = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()


class EffectShown(serializers.Serializer[IdempotencyRecord]):
    """What is known about one outside action."""

    operation_id = serializers.UUIDField()
    run = serializers.UUIDField(source="run_id")
    task_key = serializers.CharField()
    operation = serializers.CharField()
    key = serializers.CharField()
    generation = serializers.IntegerField()
    status = serializers.CharField()
    request_hash = serializers.CharField(allow_null=True)
    request = Stored(source="proposed_request")
    sent_request = Stored(allow_null=True)
    response = Stored(allow_null=True)
    error = Stored(allow_null=True)
    external_resource_id = serializers.CharField(allow_null=True)
    attempt = serializers.IntegerField()
    call_deadline = serializers.DateTimeField(allow_null=True)
    settle_until = serializers.DateTimeField(
        allow_null=True, help_text="Before this time the call may still land."
    )
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    settled_at = serializers.DateTimeField(allow_null=True)


class RunPage(serializers.Serializer[Any]):
    """A page of runs."""

    results = RunRow(many=True)
    next = serializers.CharField(allow_null=True, help_text="Where the next page is.")


class EventPage(serializers.Serializer[Any]):
    """A page of events."""

    results = EventShown(many=True)
    next = serializers.CharField(allow_null=True, help_text="Where the next page is.")


class InterruptPage(serializers.Serializer[Any]):
    """A page of questions."""

    results = InterruptShown(many=True)
    next = serializers.CharField(allow_null=True, help_text="Where the next page is.")


def page(
    request: Request,
    kind: type[serializers.Serializer[Any]],
    rows: Iterable[Any],
    **next_page: object,
) -> Response:
    """Answer with one page; `next_page` is the parameter that leads to the next, or None."""
    (name, value), *_ = next_page.items()
    address = None
    if value is not None and value != "":
        asked = {**request.query_params.dict(), name: str(value)}
        address = f"{request.path}?{urlencode(asked)}"
    return Response({"results": kind(rows, many=True).data, "next": address})
