"""What pages and the API read about approvals. Each function says how many queries it costs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import Prefetch, Q, QuerySet
from django.db.models.functions import Now

from approvals import clock, people, rules
from approvals.errors import AlreadyDecided, ApprovalNotFound, InvalidCursor, NotPermitted
from approvals.models import Approval, Decision, Refusal
from approvals.statuses import ApprovalStatus

View = Literal["needs_me", "waiting_for_others", "decided"]

PAGE_SIZE = 50
# Counting stops here; a page shows "999+".
MOST_COUNTED = 1000
# Somebody's script may be refused ten thousand times; a page shows the latest.
MOST_REFUSALS = 50
# What the page of one run shows of its requests.
MOST_OF_RUN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of approvals with their runs and decisions. `after` is empty on the last page."""

    approvals: list[Approval]
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many requests are open, each at most MOST_COUNTED."""

    needs_me: int
    waiting_for_others: int


def inbox(person: User, *, tenant: str, view: View = "needs_me", after: str | None = None) -> Page:
    """One page of a view; `after` is the previous page's. Two queries beyond the person's rights.

    Open requests come most urgent first, others newest first. What is overdue is never listed as
    open, swept or not. Raises InvalidCursor.
    """
    approvals = _view(person, tenant, view)
    newest_first = view == "decided"
    if after:
        approvals = approvals.filter(_beyond(after, newest_first=newest_first))
    order = ("-requested_at", "-id") if newest_first else ("decide_by", "id")
    found = list(
        approvals.order_by(*order)
        .select_related("run")
        .prefetch_related(_decisions())[: PAGE_SIZE + 1]
    )
    shown = found[:PAGE_SIZE]
    more = len(found) > PAGE_SIZE
    return Page(
        approvals=shown, after=_cursor(shown[-1], newest_first=newest_first) if more else ""
    )


def counts(person: User, *, tenant: str) -> Counts:
    """How many requests wait for this person and for others. Two queries beyond their rights."""
    return Counts(
        needs_me=_view(person, tenant, "needs_me")[:MOST_COUNTED].count(),
        waiting_for_others=_view(person, tenant, "waiting_for_others")[:MOST_COUNTED].count(),
    )


def for_page(approval_id: UUID, tenant: str) -> Approval:
    """One approval with run, permit, decisions and the latest refusals. Three queries.

    Raises ApprovalNotFound, for another tenant's too.
    """
    latest = Refusal.objects.filter(approval_id=approval_id).order_by("-id")[:MOST_REFUSALS]
    refusals = Refusal.objects.filter(id__in=latest.values("id")).order_by("-id")
    found = (
        Approval.objects.select_related("run", "permit")
        .prefetch_related(_decisions(), Prefetch("refusals", queryset=refusals))
        .filter(id=approval_id, tenant=tenant)
        .first()
    )
    if found is None:
        raise ApprovalNotFound
    return found


def previous(approval: Approval) -> Approval | None:
    """The request that this one took the place of, to show what changed. One query."""
    return (
        Approval.objects.filter(run_id=approval.run_id, version__lt=approval.version)
        .filter(operation=approval.operation, key=approval.key)
        .order_by("-version")
        .first()
    )


def newest(approval: Approval) -> Approval:
    """The newest request for the same action: where a superseded one leads. One query."""
    return (
        Approval.objects.filter(
            run_id=approval.run_id, operation=approval.operation, key=approval.key
        )
        .order_by("-version")
        .first()
        or approval
    )


def of_run(run_id: UUID) -> list[Approval]:
    """The latest requests of a run with their decisions, oldest first. Two queries."""
    requests = Approval.objects.filter(run_id=run_id).order_by("-requested_at", "-version")
    return list(requests.prefetch_related(_decisions())[:MOST_OF_RUN])[::-1]


def why_not(person: User, approval: Approval) -> str:
    """One sentence why this person may not approve now; empty if they may.

    At most two queries beyond the person's rights, for an approval of `for_page` or `inbox`.
    `decisions.decide` judges by the same rules, afresh.
    """
    if not people.may_decide(person):
        return str(NotPermitted())
    recorded = next(iter(approval.decisions.all()), None)
    if recorded:
        return str(AlreadyDecided(recorded))
    objection = rules.open_at(approval, clock.now()) or rules.approvable(
        approval,
        actor=people.actor(person),
        requester_known=people.is_known(approval.requested_by),
    )
    return str(objection or "")


def _view(person: User, tenant: str, view: View) -> QuerySet[Approval]:
    # Now() is the statement's time. A list waits for no lock, and unlike clock_timestamp() it can
    # be looked up in an index.
    approvals = Approval.objects.filter(tenant=tenant)
    if view == "decided":
        return approvals.filter(~Q(status=ApprovalStatus.PENDING) | Q(decide_by__lte=Now()))
    actionable = approvals.filter(status=ApprovalStatus.PENDING, decide_by__gt=Now())
    if not people.may_decide(person):
        return actionable.none() if view == "needs_me" else actionable
    names = [people.actor(person, by_token=by_token) for by_token in (False, True)]
    own = Q(requested_by__in=names) & ~Q(policy_snapshot__no_self_approval=False)
    return actionable.filter(~own if view == "needs_me" else own)


def _decisions() -> Prefetch[str]:
    return Prefetch("decisions", queryset=Decision.objects.order_by("id"))


def _cursor(last: Approval, *, newest_first: bool) -> str:
    at = last.requested_at if newest_first else last.decide_by
    return f"{at.astimezone(UTC).isoformat()}~{last.id}"


def _beyond(cursor: str, *, newest_first: bool) -> Q:
    at_text, _, id_text = cursor.partition("~")
    try:
        at, last = datetime.fromisoformat(at_text), UUID(id_text)
    except ValueError as error:
        raise InvalidCursor from error
    if at.tzinfo is None:
        raise InvalidCursor
    if newest_first:
        return Q(requested_at__lte=at) & ~Q(requested_at=at, id__gte=last)
    return Q(decide_by__gte=at) & ~Q(decide_by=at, id__lte=last)
