"""One request: what will run, why it needs a person, the decision and its receipt."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_safe

from approvals import clock, decisions, queries
from approvals.errors import ApprovalError, ApprovalNotFound
from approvals.models import Approval
from approvals.statuses import ApprovalStatus
from dashboard import text
from dashboard.access import allowed
from dashboard.htmx import HtmxRequest, page
from dashboard.parameters import parameters
from dashboard.refusals import Refusal, refusal
from dashboard.words import UNDO
from durable import journal, registry
from durable.models import IdempotencyRecord


@require_http_methods(["GET", "HEAD", "POST"])
@allowed("approvals.view_approval")
def approval(request: HtmxRequest, approval_id: UUID) -> HttpResponse:
    """Show one request; a POST decides about exactly what was shown."""
    if request.method == "POST":
        return _decide(request, approval_id)
    return _show(request, _found(approval_id))


def _found(approval_id: UUID) -> Approval:
    try:
        return queries.for_page(approval_id, settings.TENANT)
    except ApprovalNotFound as error:
        raise Http404 from error


def _decide(request: HtmxRequest, approval_id: UUID) -> HttpResponse:
    found = _found(approval_id)
    try:
        decisions.decide(
            approval_id,
            person=request.user,
            choice=_only(request, "choice"),
            reason=_only(request, "reason"),
            version=_version(request),
            digest=_only(request, "digest"),
            surface="web",
        )
    except ApprovalError as error:
        return _show(request, _found(approval_id), refused=refusal(error))
    if request.htmx:
        return _show(request, _found(approval_id), just_decided=True)
    return redirect("dashboard:approval", found.id)


def _only(request: HtmxRequest, name: str) -> str:
    """The one value that was sent under a name; nothing if it was sent twice."""
    sent = request.POST.getlist(name)
    return sent[0].replace("\r\n", "\n") if len(sent) == 1 else ""


def _version(request: HtmxRequest) -> int:
    sent = _only(request, "version")
    return int(sent) if sent.isascii() and sent.isdigit() and len(sent) < 10 else 0


def _show(
    request: HtmxRequest,
    found: Approval,
    *,
    refused: Refusal | None = None,
    just_decided: bool = False,
) -> HttpResponse:
    now = clock.now()
    is_open = found.status == ApprovalStatus.PENDING and found.decide_by > now
    why_not = queries.why_not(request.user, found) if is_open else ""
    bound = parameters(found.parameters)
    replaced = found.status == ApprovalStatus.SUPERSEDED
    context = {
        "section": "inbox",
        "approval": found,
        "now": now,
        "is_open": is_open,
        "is_overdue": found.status == ApprovalStatus.PENDING and not is_open,
        "why_not": why_not,
        "may_decide": request.user.has_perm("approvals.decide_approval"),
        "decision": next(iter(found.decisions.all()), None),
        "newest": queries.newest(found) if replaced else None,
        "parameters": bound,
        "oddities": _oddities(found, bound),
        "facts": _facts(found),
        "sentence": found.policy_snapshot.get("sentence", ""),
        "refused": refused,
        "just_decided": just_decided,
        "sent": request.POST,
    }
    answer = page(
        request,
        "dashboard/approval.html",
        context,
        fragment="dashboard/_approval.html",
        status=refused.status if refused else 200,
    )
    journal.harden()
    return answer


def _oddities(found: Approval, bound: list[Any]) -> list[tuple[str, tuple[str, ...]]]:
    """Where odd characters are, in words: over everything shown that others have written."""
    fields = {"Title": found.title, "Target": found.target, "Key": found.key}
    odd = [(name, text.warnings(value)) for name, value in fields.items()]
    odd += [(parameter.name, parameter.warnings) for parameter in bound]
    return [(name, warnings) for name, warnings in odd if warnings]


def _facts(found: Approval) -> dict[str, Any]:
    """What we know about the action's safety: can it be undone, was it tried before."""
    record = IdempotencyRecord.objects.filter(operation_id=found.operation_id).first()
    effect = registry.effect(found.action)
    return {"record": record, "undo": UNDO.get(effect.undo, "") if effect else ""}


@require_safe
@allowed("approvals.view_approval")
def value(request: HtmxRequest, approval_id: UUID, position: int) -> HttpResponse:
    """One bound value in full."""
    found = _found(approval_id)
    bound = parameters(found.parameters)
    if position >= len(bound):
        raise Http404
    return page(
        request,
        "dashboard/value.html",
        {"section": "inbox", "approval": found, "parameter": bound[position]},
    )
