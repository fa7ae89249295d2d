"""Runs: start, list, look, and what an operator may do to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable import requests, runs
from durable.api import queries, shown
from durable.faults import Fault, InvalidRequest
from durable.queries import Position
from durable.requests import ApiView, Fields
from durable.statuses import RunStatus

VIEW, START, OPERATE = "durable.view_run", "durable.start_run", "durable.operate_run"
MOST_LABELS = 50


class StartFields(Fields):
    """What starts a run."""

    workflow = requests.Text()
    input = requests.Value(help_text="What the workflow receives; any JSON value.")
    goal = requests.Text(required=False, allow_blank=True, help_text="One line for people.")
    key = requests.Text(required=False, help_text="The same as the header Idempotency-Key.")
    version = requests.Text(required=False, help_text="Of the workflow; the newest by default.")
    run_at = requests.Moment(required=False, help_text="Not before this time.")
    thread_id = requests.Text(required=False)
    priority = requests.Number(required=False, min_value=-1000, max_value=1000)
    labels = serializers.DictField(child=requests.Text(allow_blank=True), required=False)

    def validate_labels(self, labels: dict[str, str]) -> dict[str, str]:
        if len(labels) > MOST_LABELS or any(len(name) > requests.MAX_TEXT for name in labels):
            raise serializers.ValidationError(
                f"must be at most {MOST_LABELS}, with names of at most {requests.MAX_TEXT}"
            )
        return labels


class ReasonFields(Fields):
    """Why an operator does what they do."""

    reason = requests.Text(max_length=2000)


class RunsQuery(Fields):
    """Which runs."""

    cursor = requests.Text(required=False, help_text="From `next` of the page before.")
    limit = requests.Digits(required=False, min_value=1, max_value=200)
    status = serializers.ChoiceField(required=False, choices=[s.value for s in RunStatus])
    workflow = requests.Text(required=False)


class EventsQuery(Fields):
    """Which events."""

    after = requests.Digits(required=False, help_text="Only events with a higher `seq`.")
    limit = requests.Digits(required=False, min_value=1, max_value=queries.MOST_EVENTS)


def position(query: dict[str, Any]) -> Position | None:
    """The place that a cursor names. Raises InvalidRequest."""
    cursor: str | None = query.get("cursor")
    if cursor is None:
        return None
    found = Position.parse(cursor)
    if found is None:
        raise InvalidRequest([Fault("cursor", "is not from `next` of another page")])
    return found


class Runs(ApiView):
    """All runs."""

    rights: ClassVar = {"GET": VIEW, "POST": START}
    query_fields = RunsQuery

    @extend_schema(
        operation_id="runs_list", parameters=[RunsQuery], responses=shown.RunPage, tags=["runs"]
    )
    def get(self, request: Request) -> Response:
        """List runs, newest first."""
        page = queries.runs(
            tenant=settings.TENANT,
            status=self.query.get("status"),
            workflow=self.query.get("workflow"),
            after=position(self.query),
            size=self.query.get("limit", queries.PAGE),
        )
        return shown.page(request, shown.RunRow, page.rows, cursor=page.next)

    @extend_schema(
        operation_id="runs_start",
        parameters=[
            OpenApiParameter(
                requests.HEADER,
                location=OpenApiParameter.HEADER,
                description="The start key: repeating it returns the run that exists.",
            )
        ],
        request=StartFields,
        responses={201: shown.RunShown, 200: shown.RunShown},
        tags=["runs"],
    )
    def post(self, request: Request) -> Response:
        """Start a run: 201. The same key and input again: 200, and the run that exists.

        The same key with another input is refused: 422, START_KEY_CONFLICT.
        """
        asked = requests.body(request, StartFields)
        asked["key"] = requests.idempotency_key(request, asked.get("key"))
        started = runs.start(
            asked.pop("workflow"),
            asked.pop("input"),
            actor=requests.actor(request),
            tenant=settings.TENANT,
            **asked,
        )
        return Response(
            shown.RunShown(queries.run(started.run.id, tenant=settings.TENANT)).data,
            status=201 if started.created else 200,
            headers={"Location": f"{request.path}{started.run.id}/"},
        )


class Run(ApiView):
    """One run."""

    rights: ClassVar = {"GET": VIEW}

    @extend_schema(operation_id="runs_show", responses=shown.RunShown, tags=["runs"])
    def get(self, request: Request, run_id: UUID) -> Response:
        """Show one run."""
        return Response(shown.RunShown(queries.run(run_id, tenant=settings.TENANT)).data)


class Events(ApiView):
    """The log of one run."""

    rights: ClassVar = {"GET": VIEW}
    query_fields = EventsQuery

    @extend_schema(
        operation_id="runs_events",
        parameters=[EventsQuery],
        responses=shown.EventPage,
        tags=["runs"],
    )
    def get(self, request: Request, run_id: UUID) -> Response:
        """List a run's events, oldest first. To follow a run, ask again after the last `seq`."""
        page = queries.events(
            run_id,
            tenant=settings.TENANT,
            after=self.query.get("after", 0),
            size=self.query.get("limit", queries.MOST_EVENTS),
        )
        return shown.page(request, shown.EventShown, page.rows, after=page.next)


class Operation(ApiView):
    """Something an operator asks of a run: stored now, done by the run's executor."""

    rights: ClassVar = {"POST": OPERATE}
    command: ClassVar[Callable[..., None]]

    def ask(self, request: Request, run_id: UUID) -> Response:
        """Leave the request for the run and show it."""
        asked = requests.body(request, ReasonFields)
        type(self).command(
            run_id,
            actor=requests.actor(request),
            reason=asked["reason"],
            tenant=settings.TENANT,
        )
        run = queries.run(run_id, tenant=settings.TENANT)
        return Response(shown.RunShown(run).data, status=202)


class Cancel(Operation):
    """Cancel a run."""

    command = staticmethod(runs.cancel)

    @extend_schema(
        operation_id="runs_cancel",
        request=ReasonFields,
        responses={202: shown.RunShown},
        tags=["runs"],
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """Cancel a run: no outside action starts any more, and what it did is undone."""
        return self.ask(request, run_id)


class Resume(Operation):
    """Let a blocked run go on."""

    command = staticmethod(runs.resume)

    @extend_schema(
        operation_id="runs_resume",
        request=ReasonFields,
        responses={202: shown.RunShown},
        tags=["runs"],
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """Let a blocked run try again from where it is."""
        return self.ask(request, run_id)


class GiveUp(Operation):
    """End a blocked run."""

    command = staticmethod(runs.give_up)

    @extend_schema(
        operation_id="runs_give_up",
        request=ReasonFields,
        responses={202: shown.RunShown},
        tags=["runs"],
    )
    def post(self, request: Request, run_id: UUID) -> Response:
        """End a blocked run as failed, after undoing what can be undone."""
        return self.ask(request, run_id)
