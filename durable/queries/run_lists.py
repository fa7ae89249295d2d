"""Lists of runs, each row with the cause of its state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet

from durable import conf, snapshots
from durable.explain import Explanation, explain
from durable.models import Run
from durable.queries import counts
from durable.queries.counts import PAGE, Bounded, Position
from durable.snapshots import Snapshot
from durable.statuses import RunStatus, WaitingFor

_NOW_AND_SWEEP = "SELECT clock_timestamp(), (SELECT max(swept_at) FROM durable_sweeper)"


class View(StrEnum):
    """Ready-made selections of runs, each with a bounded count."""

    ALL = "all"
    NEEDS_OPERATOR = "needs-operator"
    WAITING = "waiting"
    ACTIVE = "active"
    FAILED = "failed"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"


VIEW_STATUSES: dict[View, tuple[RunStatus, ...]] = {
    View.ALL: (),
    View.NEEDS_OPERATOR: (RunStatus.BLOCKED,),
    View.WAITING: (RunStatus.WAITING,),
    View.ACTIVE: (RunStatus.PENDING, RunStatus.RUNNING),
    View.FAILED: (RunStatus.FAILED,),
    View.SUCCEEDED: (RunStatus.SUCCEEDED,),
    View.CANCELLED: (RunStatus.CANCELLED,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One line of the run list, with the cause of its state."""

    run: Run
    explanation: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """One page of runs, newest first."""

    rows: list[RunRow]
    counts: dict[View, Bounded]
    workflows: list[str]
    now: datetime
    next: Position | None
    sweep_is_late: bool


def run_list(
    *,
    tenant: str,
    view: View = View.ALL,
    workflow: str = "",
    after: Position | None = None,
    size: int = PAGE,
) -> RunList:
    """Return one page of a tenant's runs, newest first. 3 statements."""
    runs = Run.objects.filter(tenant=tenant)
    if VIEW_STATUSES[view]:
        runs = runs.filter(status__in=VIEW_STATUSES[view])
    if workflow:
        runs = runs.filter(workflow=workflow)
    if after:
        runs = runs.filter(Q(created_at__lt=after.at) | Q(created_at=after.at, id__lt=after.id))
        runs = runs.filter(created_at__lte=after.at)  # lets the index start there
    page = list(with_lease(runs).order_by("-created_at", "-id")[: size + 1])
    numbers, now, swept_at = count_views(tenant)
    rows = [row(run, now) for run in page[:size]]
    last = page[size - 1] if len(page) > size else None
    return RunList(
        rows=rows,
        counts=numbers,
        workflows=_workflows(tenant),
        now=now,
        next=Position(last.created_at, last.id) if last else None,
        sweep_is_late=snapshots.sweep_is_late(swept_at, now, interval=conf.sweep_interval()),
    )


def _workflows(tenant: str) -> list[str]:
    """The workflows among a tenant's newest runs, for the filter."""
    newest = Run.objects.filter(tenant=tenant).order_by("-created_at", "-id").values("workflow")
    return sorted(set(newest[: counts.MOST_COUNTED].values_list("workflow", flat=True)))


def count_views(tenant: str) -> tuple[dict[View, Bounded], datetime, datetime | None]:
    """Count each view up to a limit, from the index alone; the database's time; the last sweep."""
    statuses = sorted({status for group in VIEW_STATUSES.values() for status in group})
    one = "(SELECT count(*) FROM (SELECT 1 FROM durable_run WHERE tenant = %s AND status = %s"
    columns = ", ".join(f"{one} LIMIT %s) AS found)" for _ in statuses)
    params = [part for status in statuses for part in (tenant, status, counts.MOST_COUNTED + 1)]
    with connection.cursor() as cursor:
        cursor.execute(f"{_NOW_AND_SWEEP}, {columns}", params)
        now, swept_at, *found = cursor.fetchone()
    numbers = dict(zip(statuses, found, strict=True))
    views = {}
    for view, group in VIEW_STATUSES.items():
        number = sum(numbers[status] for status in (group or statuses))
        views[view] = counts.bounded(number)
    return views, now, swept_at


def with_lease(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Add the lease, without the columns that only a run's own page shows."""
    return runs.select_related("lease").defer("input", "output", "error", "labels")


def row(run: Run, now: datetime) -> RunRow:
    """A run as a line of a list, explained by its own row and its lease alone."""
    seen = snapshot_of(run, now=now, is_brief=True)
    return RunRow(run=run, explanation=explain(seen))


def snapshot_of(run: Run, *, now: datetime, **known: Any) -> Snapshot:
    """The snapshot of a run from its own row and its lease; `known` adds what a page read."""
    lease = getattr(run, "lease", None)
    return Snapshot(
        now=now,
        status=RunStatus(run.status),
        created_at=run.created_at,
        waiting_for=WaitingFor(run.waiting_for),
        wake_at=run.wake_at,
        code=run.code,
        reason=run.reason,
        started_at=run.started_at,
        ended_at=run.ended_at,
        cancel_requested=lease.cancel_requested if lease else False,
        lease_held=lease is not None and lease.owner is not None,
        lease_expires_at=lease.expires_at if lease else None,
        epoch=lease.epoch if lease else 0,
        worker=lease.worker if lease else "",
        activity=lease.activity if lease else "",
        swept_at=getattr(run, "swept_at", None),
        sweep_interval=conf.sweep_interval(),
        **known,
    )
