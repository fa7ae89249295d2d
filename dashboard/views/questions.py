"""One question that a run asks a person."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from dashboard.access import actor, allowed
from dashboard.forms import AnswerForm
from dashboard.htmx import HtmxRequest, page
from dashboard.refusals import Refusal, refusal
from durable import errors, journal, queries, runs
from durable.models import Interrupt
from durable.statuses import InterruptStatus


@require_http_methods(["GET", "HEAD", "POST"])
@allowed("durable.view_run")
def question(request: HtmxRequest, interrupt_id: UUID) -> HttpResponse:
    """Show one question; a POST answers it."""
    found = _found(interrupt_id)
    if request.method != "POST":
        return _show(request, found)
    if not request.user.has_perm("durable.operate_run"):
        raise PermissionDenied
    form = AnswerForm(request.POST)
    try:
        if not form.is_valid():
            raise errors.InvalidValue("choose text or JSON", path="format")
        runs.answer(interrupt_id, form.value(), actor=actor(request), tenant=settings.TENANT)
    except errors.DurableError as error:
        return _show(request, _found(interrupt_id), refused=refusal(error))
    messages.info(
        request,
        "Recorded: your answer. The run continues with it when a worker takes it.",
        extra_tags="waiting",
    )
    return redirect("dashboard:question", interrupt_id)


def _found(interrupt_id: UUID) -> queries.QuestionPage:
    try:
        return queries.question_page(interrupt_id, tenant=settings.TENANT)
    except Interrupt.DoesNotExist as error:
        raise Http404 from error


def _show(
    request: HtmxRequest, found: queries.QuestionPage, *, refused: Refusal | None = None
) -> HttpResponse:
    asked = found.interrupt
    is_open = asked.status == InterruptStatus.OPEN and not found.received
    if asked.expires_at is not None and asked.expires_at <= found.now:
        is_open = False
    answer = page(
        request,
        "dashboard/question.html",
        {
            "section": "runs",
            "question": asked,
            "run": found.run,
            "now": found.now,
            "received": found.received,
            "is_open": is_open,
            "schema": queries.pretty(asked.schema),
            "given": queries.pretty(asked.answer),
            "refused": refused,
            "sent": request.POST,
        },
        status=refused.status if refused else 200,
    )
    journal.harden()
    return answer
