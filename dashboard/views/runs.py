"""Runs: the list, one run with its timeline, one event, the search, and what operators may do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from approvals import queries as approvals
from approvals.errors import ApprovalNotFound
from approvals.statuses import ApprovalStatus
from dashboard import story
from dashboard.access import actor, allowed
from dashboard.forms import ReasonForm
from dashboard.htmx import STOP_POLLING, UNCHANGED, HtmxRequest, page
from dashboard.refusals import NOT_VALID, Refusal, refusal
from durable import errors, explain, journal, queries, runs, search, snapshots, timeline
from durable.models import Event, Run
from durable.statuses import EventType, WaitingFor

VIEWS: dict[queries.View, str] = {
    queries.View.ALL: "All",
    queries.View.NEEDS_OPERATOR: "Needs attention",
    queries.View.WAITING: "Waiting",
    queries.View.ACTIVE: "Working",
    queries.View.FAILED: "Failed",
    queries.View.SUCCEEDED: "Done",
    queries.View.CANCELLED: "Cancelled",
}


# The list ----------------------------------------------------------------------------------------


@require_safe
@allowed("durable.view_run")
def run_list(request: HtmxRequest) -> HttpResponse:
    """One page of runs, newest first."""
    asked = request.GET.get("view", "")
    view = queries.View(asked) if asked in set(queries.View) else queries.View.ALL
    workflow = request.GET.get("workflow", "").replace("\x00", "")
    found = queries.run_list(
        tenant=settings.TENANT,
        view=view,
        workflow=workflow,
        after=queries.Position.parse(request.GET.get("after", "")),
    )
    answer = page(
        request,
        "dashboard/runs.html",
        {
            "section": "runs",
            "found": found,
            "now": found.now,
            "view": view,
            "workflow": workflow,
            "views": [(name, title, found.counts[name]) for name, title in VIEWS.items()],
            "is_first": "after" not in request.GET,
        },
    )
    journal.harden()
    return answer


@require_safe
@allowed("durable.view_run")
def find(request: HtmxRequest) -> HttpResponse:
    """Open what the searched text names; list it when it names several things, or none."""
    text = request.GET.get("q", "")
    found = search.find(text, tenant=settings.TENANT)
    if len(found) == 1:
        return redirect(_address(found[0]))
    if not found and request.user.has_perm("approvals.view_approval"):
        asked = _asked(text)
        if asked is not None:
            return redirect("dashboard:approval", asked)
    context = {"section": "runs", "q": text, "found": [(one, _address(one)) for one in found]}
    return page(request, "dashboard/search.html", context)


def _asked(text: str) -> UUID | None:
    """The request for approval whose id or receipt this is."""
    try:
        return approvals.for_page(UUID(text.partition("/")[0].strip()), settings.TENANT).id
    except (ValueError, ApprovalNotFound):
        return None


def _address(found: search.Found) -> str:
    if found.kind == "operation":
        return f"/effects/{found.id}/"
    if found.kind == "question":
        return f"/questions/{found.id}/"
    if found.seq is not None:
        return f"/runs/{found.run_id}/events/{found.seq}/"
    return f"/runs/{found.run_id}/"


# One run -----------------------------------------------------------------------------------------


@require_safe
@allowed("durable.view_run")
def run_page(request: HtmxRequest, run_id: UUID) -> HttpResponse:
    """One run: why it is not moving, what is known about it, and its timeline."""
    return _show(request, run_id)


def _show(request: HtmxRequest, run_id: UUID, *, refused: Refusal | None = None) -> HttpResponse:
    before = request.GET.get("before", "")
    lane = request.GET.get("lane", "")
    try:
        found = queries.run_page(
            run_id,
            tenant=settings.TENANT,
            before=int(before) if before.isascii() and before.isdigit() else None,
            lane=timeline.Lane(lane) if lane in set(timeline.Lane) else None,
        )
    except Run.DoesNotExist as error:
        raise Http404 from error
    context = {
        "section": "runs",
        "found": found,
        "run": found.run,
        "now": found.now,
        "story": story.tell(found.log),
        "lanes": story.LANES,
        "is_live": queries.is_live(found.run),
        "refused": refused,
        **_why(found),
    }
    answer = page(request, "dashboard/run.html", context, status=refused.status if refused else 200)
    journal.harden()
    return answer


def _why(found: queries.RunPage) -> dict[str, Any]:
    """The explanation, the addresses of its actions, and a mark that changes when it does."""
    said = found.explanation(_open_approvals(found.run))
    facts = (
        found.run.status,
        found.run.lease.last_seq,
        said.tone,
        [action.name for action in said.actions],
        # The words for "how long ago" age: say them anew every fifteen seconds.
        int(found.now.timestamp()) // 15,
    )
    mark = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return {
        "why": said,
        "mark": mark,
        "actions": [(action, _target(found.run, action)) for action in said.actions],
        "allowed_names": {action.name for action in said.actions},
    }


def _target(run: Run, action: explain.Action) -> str:
    """Where an action is done: a page, or a form further down on the run's own."""
    pages = {
        "decide": f"/approvals/{action.target}/",
        "answer": f"/questions/{action.target}/",
        "resolve": f"/effects/{action.target}/",
        "start_worker": "/operations/",
    }
    return pages.get(action.name, f"#{action.name}")


def _open_approvals(run: Run) -> tuple[snapshots.OpenApproval, ...]:
    """The requests that this run waits for."""
    if run.waiting_for not in (WaitingFor.APPROVAL, WaitingFor.SEVERAL):
        return ()
    return tuple(
        snapshots.OpenApproval(id=asked.id, title=asked.title, decide_by=asked.decide_by)
        for asked in approvals.of_run(run.id)
        if asked.status == ApprovalStatus.PENDING
    )


@require_safe
@allowed("durable.view_run")
def status(request: HtmxRequest, run_id: UUID) -> HttpResponse:
    """The live part of a run's page, for polling: nothing when nothing has changed."""
    try:
        found = queries.run_page(run_id, tenant=settings.TENANT, events=1)
    except Run.DoesNotExist as error:
        raise Http404 from error
    why = _why(found)
    if request.GET.get("mark") == why["mark"]:
        return HttpResponse(status=UNCHANGED)
    seen = request.GET.get("seen", "")
    is_live = queries.is_live(found.run)
    context = {
        "found": found,
        "run": found.run,
        "now": found.now,
        "is_live": is_live,
        "seen": seen,
        "new_events": found.run.lease.last_seq - int(seen) if seen.isdigit() else 0,
        "is_polled": True,
        **why,
    }
    answer = page(
        request, "dashboard/_run_live.html", context, status=200 if is_live else STOP_POLLING
    )
    journal.harden()
    return answer


# What operators may do ---------------------------------------------------------------------------


def _act(
    request: HtmxRequest, run_id: UUID, do: Callable[..., None], name: str, said: str
) -> HttpResponse:
    """Record what an operator asks for, or say why not. Nothing is ever said to be done already."""
    if not Run.objects.filter(id=run_id, tenant=settings.TENANT).exists():
        raise Http404
    form = ReasonForm(request.POST)
    if not form.is_valid():
        detail = " ".join(str(error) for error in form.errors.get("reason", []))
        missing = Refusal(status=NOT_VALID, title="There is a problem", detail=detail, field=name)
        return _show(request, run_id, refused=missing)
    try:
        do(
            run_id,
            actor=actor(request),
            reason=form.cleaned_data["reason"],
            tenant=settings.TENANT,
        )
    except errors.DurableError as error:
        return _show(request, run_id, refused=replace(refusal(error), field=name))
    messages.info(request, said, extra_tags="waiting")
    return redirect("dashboard:run", run_id)


@require_POST
@allowed("durable.operate_run")
def cancel(request: HtmxRequest, run_id: UUID) -> HttpResponse:
    """Ask a run to stop and to undo what it can."""
    said = "Recorded: this run is asked to cancel. It has ended when it says “Cancelled”."
    return _act(request, run_id, runs.cancel, "cancel", said)


@require_POST
@allowed("durable.operate_run")
def resume(request: HtmxRequest, run_id: UUID) -> HttpResponse:
    """Ask a stopped run to try again from where it is."""
    said = "Recorded: this run is asked to try again. A worker takes it next."
    return _act(request, run_id, runs.resume, "resume", said)


@require_POST
@allowed("durable.operate_run")
def give_up(request: HtmxRequest, run_id: UUID) -> HttpResponse:
    """Ask a stopped run to end as failed after undoing what it can."""
    said = "Recorded: this run is given up. It has ended when it says “Failed”."
    return _act(request, run_id, runs.give_up, "give_up", said)


# One event ---------------------------------------------------------------------------------------


@require_safe
@allowed("durable.view_run")
def event(request: HtmxRequest, run_id: UUID, seq: int) -> HttpResponse:
    """One event in full."""
    try:
        found = queries.event_page(run_id, seq, tenant=settings.TENANT)
    except (Run.DoesNotExist, Event.DoesNotExist) as error:
        raise Http404 from error
    context = {
        "section": "runs",
        "run": found.run,
        "event": found.event,
        "last_seq": found.last_seq,
        "hash": bytes(found.event.hash).hex(),
        "payload": queries.pretty(found.event.payload),
        "known_type": found.event.type in set(EventType),
    }
    answer = page(request, "dashboard/event.html", context)
    journal.harden()
    return answer
