"""One outside action of which nobody knows whether it happened, and the ways to settle that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from dashboard.access import actor, allowed
from dashboard.forms import HappenedForm, ReasonForm
from dashboard.htmx import HtmxRequest, page
from dashboard.refusals import NOT_VALID, Refusal, refusal
from durable import effects, errors, journal, queries, registry, runs, wording
from durable.models import IdempotencyRecord
from durable.statuses import EventType, RecordStatus, RunStatus


@require_safe
@allowed("durable.view_run")
def effect(request: HtmxRequest, operation_id: UUID) -> HttpResponse:
    """What is known about one outside action."""
    return _show(request, operation_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    """What follows from each answer, before it is given and after."""

    happened: str
    not_happened: str
    said_happened: str
    said_not_happened: str


# By what the run is doing: only one that still goes forward continues with the answer.
CONSEQUENCES = {
    "forward": Consequence(
        happened="The run goes on with the id and the result that you enter. Nothing is sent.",
        not_happened="The same request is sent once more, under the same key.",
        said_happened="Recorded: it happened. The run continues when a worker takes it.",
        said_not_happened="Recorded: it did not happen. A worker sends the same request once more,"
        " under the same key.",
    ),
    "turning back": Consequence(
        happened="The run is turning back: it undoes this next, if it can be undone.",
        not_happened="The run is turning back: nothing is sent, and nothing of this is left.",
        said_happened="Recorded: it happened. A worker undoes it next, if it can be undone.",
        said_not_happened="Recorded: it did not happen. The run goes on turning back.",
    ),
    "ended": Consequence(
        happened="The run has ended: this is only recorded. Nothing is undone, so undo it at the"
        " service yourself if it has to be.",
        not_happened="The run has ended: this is only recorded, and nothing is sent.",
        said_happened="Recorded: it happened. The run has ended and does not undo it; that is left"
        " to you.",
        said_not_happened="Recorded: it did not happen. The run has ended; nothing is sent.",
    ),
}


def _stage(found: queries.EffectPage) -> str:
    if found.run.is_final:
        return "ended"
    return "turning back" if found.is_turning_back else "forward"


def _show(
    request: HtmxRequest,
    operation_id: UUID,
    *,
    refused: Refusal | None = None,
    way: str = "",
    form: forms.Form | None = None,
) -> HttpResponse:
    found = _found(operation_id)
    definition = registry.effect(found.record.operation)
    settled = [item for item in found.received if item.type == EventType.EXTERNAL_RESOLVED]
    asked = [item for item in found.received if item.type == EventType.EXTERNAL_RECONCILE_REQUESTED]
    context: dict[str, Any] = {
        "section": "operations",
        "found": found,
        "record": found.record,
        "run": found.run,
        "now": found.now,
        "request_text": queries.pretty(found.record.sent_request or found.record.proposed_request),
        "response_text": queries.pretty(found.record.response),
        "error_text": queries.pretty(found.record.error),
        "is_unknown": found.record.status == RecordStatus.UNKNOWN,
        "settled": settled,
        "asked": asked,
        "can_ask": not found.run.is_final
        and (definition is None or definition.reconcile is not None),
        "too_early": found.can_still_land,
        "then": CONSEQUENCES[_stage(found)],
        "can_give_up": found.run.status == RunStatus.BLOCKED,
        "refused": refused,
        "way": way,
        "form": form,
        "land_until": wording.moment(found.record.settle_until),
    }
    answer = page(
        request, "dashboard/effect.html", context, status=refused.status if refused else 200
    )
    journal.harden()
    return answer


def _found(operation_id: UUID) -> queries.EffectPage:
    try:
        return queries.effect_page(operation_id, tenant=settings.TENANT)
    except IdempotencyRecord.DoesNotExist as error:
        raise Http404 from error


@require_POST
@allowed("durable.operate_run")
def settle(request: HtmxRequest, operation_id: UUID, way: str) -> HttpResponse:
    """Record one of the ways to settle an unknown outcome, or say why not."""
    found = _found(operation_id)
    form = HappenedForm(request.POST) if way == "happened" else ReasonForm(request.POST)
    if way != "ask" and not form.is_valid():
        wrong = Refusal(
            status=NOT_VALID,
            title="There is a problem",
            detail=" ".join(str(error) for errors in form.errors.values() for error in errors),
        )
        return _show(request, operation_id, refused=wrong, way=way, form=form)
    try:
        said = _settle(found, way, form, actor(request))
    except errors.DurableError as error:
        return _show(request, operation_id, refused=refusal(error), way=way, form=form)
    messages.info(request, said, extra_tags="waiting")
    return redirect("dashboard:effect", operation_id)


def _settle(found: queries.EffectPage, way: str, form: forms.Form, who: str) -> str:
    """Call the one function of the engine, and return what became of the wish, never more."""
    id_ = found.record.operation_id
    if way == "ask":
        effects.ask_outside(id_, actor=who, tenant=settings.TENANT)
        return "Asked. A worker asks the service; its answer appears below."
    reason: str = form.cleaned_data["reason"]
    if way == "happened":
        effects.resolve_happened(
            id_,
            resource_id=form.cleaned_data["resource_id"],
            result=form.cleaned_data["result"],
            actor=who,
            reason=reason,
            tenant=settings.TENANT,
        )
        return CONSEQUENCES[_stage(found)].said_happened
    if way == "not-happened":
        effects.resolve_not_happened(id_, actor=who, reason=reason, tenant=settings.TENANT)
        return CONSEQUENCES[_stage(found)].said_not_happened
    runs.give_up(found.run.id, actor=who, reason=reason, tenant=settings.TENANT)
    return "Recorded: this run is given up. It has ended when it says “Failed”."
