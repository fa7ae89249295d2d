"""Questions of runs, and their answers."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from durable import canonical, requests, runs
from durable.api import queries, shown
from durable.api.runs import OPERATE, VIEW
from durable.canonical import JSON
from durable.errors import InterruptClosed
from durable.faults import Recorded
from durable.models import Interrupt
from durable.requests import ApiView, Fields
from durable.statuses import InterruptStatus


class InterruptsQuery(Fields):
    """Which questions."""

    cursor = requests.Identifier(required=False, help_text="From `next` of the page before.")
    limit = requests.Digits(required=False, min_value=1, max_value=200)
    run = requests.Identifier(required=False)
    status = serializers.ChoiceField(required=False, choices=[s.value for s in InterruptStatus])


class AnswerFields(Fields):
    """An answer."""

    value = requests.Value(help_text="Any JSON value; it reaches the workflow exactly as sent.")


class Interrupts(ApiView):
    """All questions."""

    rights: ClassVar = {"GET": VIEW}
    query_fields = InterruptsQuery

    @extend_schema(
        operation_id="interrupts_list",
        parameters=[InterruptsQuery],
        responses=shown.InterruptPage,
        tags=["interrupts"],
    )
    def get(self, request: Request) -> Response:
        """List questions, newest first."""
        page = queries.interrupts(
            tenant=settings.TENANT,
            run_id=self.query.get("run"),
            status=self.query.get("status"),
            after=self.query.get("cursor"),
            size=self.query.get("limit", queries.PAGE),
        )
        return shown.page(request, shown.InterruptShown, page.rows, cursor=page.next)


class Answer(ApiView):
    """The answer to one question."""

    rights: ClassVar = {"POST": OPERATE}

    @extend_schema(
        operation_id="interrupts_answer",
        request=AnswerFields,
        responses=shown.InterruptShown,
        tags=["interrupts"],
    )
    def post(self, request: Request, interrupt_id: UUID) -> Response:
        """Answer a question. The first answer stands: another one is told which, with 409."""
        value = requests.body(request, AnswerFields)["value"]
        actor = requests.actor(request)
        try:
            runs.answer(interrupt_id, value, actor=actor, tenant=settings.TENANT)
        except InterruptClosed as closed:
            question = queries.interrupt(interrupt_id, tenant=settings.TENANT)
            if not _is_answer(question, value, actor):
                raise Recorded(closed, shown.InterruptShown(question).data) from closed
        question = queries.interrupt(interrupt_id, tenant=settings.TENANT)
        return Response(shown.InterruptShown(question).data)


def _is_answer(question: Interrupt, value: JSON, actor: str) -> bool:
    """Whether this is the recorded answer once more: a double click, or a lost reply."""
    recorded = (question.status, question.answered_by, question.answer)
    return recorded == (InterruptStatus.ANSWERED, actor, canonical.dumps(value))
