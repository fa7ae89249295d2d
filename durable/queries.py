"""What pages and the API read of runs: each function fetches all that one page needs.

Reads only. Every list is bounded, so that a page stays quick with a million runs and with a run
of thirty thousand events; the number of statements of each function is pinned by a test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import (
    Case,
    DateTimeField,
    F,
    Func,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
    Window,
)
from django.db.models.aggregates import Count
from django.db.models.expressions import RawSQL
from django.db.models.functions import JSONObject

from durable import canonical, conf, explain, timeline
from durable.errors import InvalidValue
from durable.models import (
    Checkpoint,
    Event,
    Evidence,
    IdempotencyRecord,
    InboxItem,
    Interrupt,
    OutboxMessage,
    Run,
    Sweeper,
)
from durable.statuses import (
    FINAL_RUN_STATUSES,
    EventType,
    InterruptStatus,
    RecordStatus,
    RunStatus,
    WaitingFor,
)

PAGE = 50
# Counts stop here and say "more": nobody needs to know whether it is 40,311 or 40,312.
MOST_COUNTED = 1000
# Facts about a run are looked for in this many of its last events.
MOST_SCANNED = 50_000

_NOW_AND_SWEEP = "SELECT clock_timestamp(), (SELECT max(swept_at) FROM durable_sweeper)"
_NOW = Func(function="clock_timestamp", output_field=DateTimeField())


# Lists of runs -----------------------------------------------------------------------------------


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
class Bounded:
    """A count that stopped at a limit."""

    number: int
    more: bool

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.more else ''}"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a list that is sorted newest first: the row after which to go on."""

    at: datetime
    id: UUID

    def __str__(self) -> str:
        return f"{self.at.isoformat()}_{self.id}"

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """Return the position, or None for text that no page of ours has written."""
        at, _, id_ = text.partition("_")
        try:
            position = cls(datetime.fromisoformat(at), UUID(id_))
        except ValueError:
            return None
        return position if position.at.tzinfo else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One line of the run list, with the cause of its state."""

    run: Run
    explanation: explain.Explanation


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
    page = list(_with_lease(runs).order_by("-created_at", "-id")[: size + 1])
    counts, now, swept_at = _counts(tenant)
    rows = [_row(run, now) for run in page[:size]]
    last = page[size - 1] if len(page) > size else None
    return RunList(
        rows=rows,
        counts=counts,
        workflows=_workflows(tenant),
        now=now,
        next=Position(last.created_at, last.id) if last else None,
        sweep_is_late=explain.sweep_is_late(swept_at, now, interval=conf.sweep_interval()),
    )


def _with_lease(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Add the lease, without the columns that only a run's own page shows."""
    return runs.select_related("lease").defer("input", "output", "error", "labels")


def _counts(tenant: str) -> tuple[dict[View, Bounded], datetime, datetime | None]:
    """Count each view up to a limit, from the index alone; the database's time; the last sweep."""
    statuses = sorted({status for group in VIEW_STATUSES.values() for status in group})
    one = "(SELECT count(*) FROM (SELECT 1 FROM durable_run WHERE tenant = %s AND status = %s"
    columns = ", ".join(f"{one} LIMIT %s) AS found)" for _ in statuses)
    params = [part for status in statuses for part in (tenant, status, MOST_COUNTED + 1)]
    with connection.cursor() as cursor:
        cursor.execute(f"{_NOW_AND_SWEEP}, {columns}", params)
        now, swept_at, *numbers = cursor.fetchone()
    found = dict(zip(statuses, numbers, strict=True))
    counts = {}
    for view, group in VIEW_STATUSES.items():
        number = sum(found[status] for status in (group or statuses))
        counts[view] = Bounded(number=min(number, MOST_COUNTED), more=number > MOST_COUNTED)
    return counts, now, swept_at


def _workflows(tenant: str) -> list[str]:
    """The workflows among a tenant's newest runs, for the filter."""
    newest = Run.objects.filter(tenant=tenant).order_by("-created_at", "-id").values("workflow")
    return sorted(set(newest[:MOST_COUNTED].values_list("workflow", flat=True)))


def _snapshot(run: Run, *, now: datetime, **known: Any) -> explain.Snapshot:
    """The snapshot of a run from its own row and its lease; `known` adds what a page read."""
    lease = getattr(run, "lease", None)
    return explain.Snapshot(
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
        attempts=run.attempts,
        swept_at=getattr(run, "swept_at", None),
        sweep_interval=conf.sweep_interval(),
        **known,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """One event in full, with its neighbours in the log."""

    run: Run
    event: Event
    last_seq: int


def event_page(run_id: UUID, seq: int, *, tenant: str) -> EventPage:
    """Return one event in full; Run.DoesNotExist or Event.DoesNotExist. 2 statements."""
    run = _with_lease(Run.objects.filter(tenant=tenant)).get(id=run_id)
    event = Event.objects.get(run_id=run_id, seq=seq)
    return EventPage(run=run, event=event, last_seq=run.lease.last_seq)


# One run -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheckpoint:
    """The boundary from which recovery goes on."""

    id: str
    seq: int
    epoch: int
    super_step: int
    next_nodes: list[str]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The eight questions about a run that seems stuck, answered from what is stored."""

    checkpoint: LastCheckpoint | None
    next_nodes: list[str]
    worker: str
    owner: UUID | None
    epoch: int
    lease_expires_at: datetime | None
    lease_held: bool
    completed: int
    last_completed: timeline.EventRow | None
    unfinished: list[str]
    outbox_pending: Bounded
    last_error: timeline.EventRow | None
    scanned_all: bool  # False: the counts cover only the last MOST_SCANNED events


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What whoever takes over must know, so that nobody has to guess what happened."""

    goal: str
    operations: list[IdempotencyRecord]
    confirmed: list[IdempotencyRecord]
    unknown: list[IdempotencyRecord]
    last_error: str
    resources: list[tuple[str, str]]  # operation, id at the outside service
    evidence: list[Evidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Everything the page of one run shows, except approvals, which durable does not know."""

    run: Run
    now: datetime
    records: list[IdempotencyRecord]
    records_left: int  # more records than are listed
    unknown: list[IdempotencyRecord]
    interrupts: list[Interrupt]
    received: list[InboxItem]
    diagnosis: Diagnosis
    log: timeline.Timeline
    last_event: timeline.EventRow | None
    sweeper: Sweeper | None = None
    hand_over: HandOver | None = None
    known: dict[str, Any] = field(default_factory=dict)

    def explanation(self, approvals: tuple[explain.OpenApproval, ...] = ()) -> explain.Explanation:
        """Why it is not moving, given the approvals that the caller has read."""
        return explain.explain(_snapshot(self.run, now=self.now, approvals=approvals, **self.known))


_COMPLETED = (EventType.TASK_COMPLETED, EventType.EXTERNAL_COMPLETED, EventType.NODE_COMPLETED)
_ERRORS = (
    EventType.TASK_FAILED,
    EventType.TASK_RETRYING,
    EventType.EXTERNAL_FAILED,
    EventType.EXTERNAL_UNKNOWN,
    EventType.EXTERNAL_REFUSED,
    EventType.RUN_BLOCKED,
    EventType.RUN_FAILED,
)
_MOST_RECORDS = 50


def run_page(
    run_id: UUID,
    *,
    tenant: str,
    before: int | None = None,
    lane: timeline.Lane | None = None,
    events: int = timeline.PAGE,
) -> RunPage:
    """Return what a run's page shows. 7 statements, 8 if blocked.

    Raises Run.DoesNotExist, for another tenant's run too.
    """
    run = _live_run(run_id, tenant)
    records = _records(run_id)
    interrupts = list(Interrupt.objects.filter(run_id=run_id).order_by("-created_at")[:20])
    received = list(
        InboxItem.objects.filter(run_id=run_id, moved_seq__isnull=True).order_by("id")[:20]
    )
    completed, notable = _notable(run)
    found = timeline.page(run_id, before=before, lane=lane, size=events)
    unknown = [record for record in records if record.status == RecordStatus.UNKNOWN]
    last_error = _newest(notable, _ERRORS)
    return RunPage(
        run=run,
        now=run.now,  # type: ignore[attr-defined]
        records=records[:_MOST_RECORDS],
        records_left=(records[0].total if records else 0) - min(len(records), _MOST_RECORDS),  # type: ignore[attr-defined]
        unknown=unknown,
        interrupts=interrupts,
        received=received,
        diagnosis=_diagnosis(run, records, completed, notable),
        log=found,
        last_event=max(notable.values(), key=lambda event: event.seq, default=None),
        hand_over=_hand_over(run, records, last_error) if run.status == RunStatus.BLOCKED else None,
        known=_known(unknown, interrupts, received, notable, last_error),
    )


def _live_run(run_id: UUID, tenant: str) -> Run:
    """The run with its lease, the database's time, the sweep and its undelivered messages."""
    swept = Sweeper.objects.values("swept_at")[:1]
    pending = RawSQL(
        """SELECT count(*) FROM (SELECT aggregate_id FROM durable_outboxmessage
            WHERE status IN ('pending', 'sending') ORDER BY next_at LIMIT 10000) AS due
            WHERE aggregate_id = durable_run.id::text""",
        [],
    )
    checkpoint = (
        Checkpoint.objects.filter(run_id=OuterRef("id"))
        .order_by("-seq")
        .values(
            facts=JSONObject(
                seq="seq", epoch="epoch", super_step="super_step", next_nodes="next_nodes", at="at"
            )
        )
    )
    return (
        Run.objects.select_related("lease")
        .annotate(
            now=_NOW,
            swept_at=Subquery(swept),
            outbox_pending=pending,
            checkpoint=Subquery(checkpoint[:1]),
        )
        .get(id=run_id, tenant=tenant)
    )


def _checkpoint(run: Run) -> LastCheckpoint | None:
    """The last checkpoint, as `_live_run` has read it."""
    facts: dict[str, Any] | None = run.checkpoint  # type: ignore[attr-defined]
    if facts is None:
        return None
    return LastCheckpoint(
        id=f"ckpt_{run.id}_{facts['seq']}",
        seq=facts["seq"],
        epoch=facts["epoch"],
        super_step=facts["super_step"],
        next_nodes=[str(node) for node in facts["next_nodes"]],
        at=datetime.fromisoformat(facts["at"]),
    )


def _records(run_id: UUID) -> list[IdempotencyRecord]:
    """A run's outside actions: those nobody is sure of first, then the newest."""
    return list(
        IdempotencyRecord.objects.filter(run_id=run_id)
        .annotate(
            total=Window(Count("*")),
            open_first=Case(
                When(status=RecordStatus.UNKNOWN, then=Value(0)),
                When(status=RecordStatus.RUNNING, then=Value(1)),
                default=Value(2),
            ),
        )
        .defer("proposed_request", "sent_request", "response")
        .order_by("open_first", "-created_at", "-operation_id")[: _MOST_RECORDS + 1]
    )


def _notable(run: Run) -> tuple[dict[str, int], dict[str, timeline.EventRow]]:
    """How often each type occurred, and the last event of each. 2 statements."""
    first = max(0, run.lease.last_seq - MOST_SCANNED)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT type, count(*), max(seq) FROM durable_event"
            " WHERE run_id = %s AND seq > %s GROUP BY type",
            [run.id, first],
        )
        found = cursor.fetchall()
    seqs = [seq for _, _, seq in found]
    events = Event.objects.filter(run_id=run.id, seq__in=seqs)
    return (
        {type_: count for type_, count, _ in found},
        {event.type: event for event in timeline.rows_of(events)},
    )


def _newest(
    events: Mapping[str, timeline.EventRow], types: Iterable[str]
) -> timeline.EventRow | None:
    return max(
        (events[type_] for type_ in types if type_ in events),
        key=lambda event: event.seq,
        default=None,
    )


def _diagnosis(
    run: Run,
    records: list[IdempotencyRecord],
    counts: Mapping[str, int],
    notable: Mapping[str, timeline.EventRow],
) -> Diagnosis:
    lease = run.lease
    pending: int = run.outbox_pending  # type: ignore[attr-defined]
    checkpoint = _checkpoint(run)
    return Diagnosis(
        checkpoint=checkpoint,
        next_nodes=_next_nodes(run, checkpoint, notable),
        worker=lease.worker,
        owner=lease.owner,
        epoch=lease.epoch,
        lease_expires_at=lease.expires_at,
        lease_held=lease.owner is not None,
        completed=sum(counts.get(type_, 0) for type_ in _COMPLETED[:2]),
        last_completed=_newest(notable, _COMPLETED),
        unfinished=_unfinished(run, records, notable),
        outbox_pending=Bounded(number=min(pending, MOST_COUNTED), more=pending > MOST_COUNTED),
        last_error=_newest(notable, _ERRORS),
        scanned_all=lease.last_seq <= MOST_SCANNED,
    )


def _next_nodes(
    run: Run, checkpoint: LastCheckpoint | None, notable: Mapping[str, timeline.EventRow]
) -> list[str]:
    """The nodes to run next: what the last checkpoint says, or the node that has begun."""
    if run.is_final:
        return []
    if checkpoint is not None:
        return checkpoint.next_nodes
    started = notable.get(EventType.NODE_STARTED)
    return [started.node if started and started.node else run.workflow]


def _unfinished(
    run: Run, records: list[IdempotencyRecord], notable: Mapping[str, timeline.EventRow]
) -> list[str]:
    """What has begun and has no result: outside actions, steps between two tries, a long task."""
    if run.is_final:
        return []
    open_records = (RecordStatus.UNKNOWN, RecordStatus.RUNNING, RecordStatus.PREPARED)
    found = [
        f"{record.operation} ({record.status})"
        for record in records
        if record.status in open_records
    ]
    retrying = notable.get(EventType.TASK_RETRYING)
    completed = notable.get(EventType.TASK_COMPLETED)
    if retrying and (completed is None or completed.seq < retrying.seq):
        found.append(f"{retrying.text('name')} (between two tries)")
    if run.lease.owner is not None and run.lease.activity:
        found.append(run.lease.activity)
    return found


def _hand_over(
    run: Run,
    records: list[IdempotencyRecord],
    last_error: timeline.EventRow | None,
) -> HandOver:
    """What the records say, and what executors that had lost the run still learned. 1 statement."""
    done = (RecordStatus.SUCCEEDED, RecordStatus.COMPENSATED)
    return HandOver(
        goal=run.goal,
        operations=records[:_MOST_RECORDS],
        confirmed=[record for record in records if record.status in done],
        unknown=[record for record in records if record.status == RecordStatus.UNKNOWN],
        last_error=timeline.error_text(last_error),
        resources=[
            (record.operation, record.external_resource_id)
            for record in records
            if record.external_resource_id
        ],
        evidence=list(Evidence.objects.filter(run_id=run.id).order_by("-id")[:10]),
    )


def _known(
    unknown: list[IdempotencyRecord],
    interrupts: list[Interrupt],
    received: list[InboxItem],
    notable: Mapping[str, timeline.EventRow],
    last_error: timeline.EventRow | None,
) -> dict[str, Any]:
    """What a run's page adds to the snapshot of its row."""
    last = max(notable.values(), key=lambda event: event.seq, default=None)
    return {
        "last_event_at": last.at if last else None,
        "last_error": timeline.error_text(last_error),
        "unknown": tuple(unknown_effect(record) for record in unknown),
        "questions": tuple(
            explain.OpenQuestion(
                id=question.id, question=question.question, expires_at=question.expires_at
            )
            for question in interrupts
            if question.status == InterruptStatus.OPEN
        ),
        "received": tuple(
            explain.ReceivedItem(type=item.type, actor=item.actor, received_at=item.received_at)
            for item in received
        ),
    }


def unknown_effect(record: IdempotencyRecord) -> explain.UnknownEffect:
    """The part of a record that the explanation needs."""
    return explain.UnknownEffect(
        operation_id=record.operation_id,
        operation=record.operation,
        key=record.key,
        since=record.started_at,
        settle_until=record.settle_until,
        may_retry_early=record.deduplicates,
    )


# One outside action, one question ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectPage:
    """One outside action with everything that helps to find out what happened."""

    record: IdempotencyRecord
    run: Run
    now: datetime
    hand_over: HandOver
    events: list[timeline.EventRow]  # what happened to it, newest first
    received: list[InboxItem]

    @property
    def can_still_land(self) -> bool:
        """The first call may yet arrive at the service."""
        until = self.record.settle_until
        return until is not None and until > self.now


def effect_page(operation_id: UUID, *, tenant: str) -> EffectPage:
    """Return what the page of one outside action shows. 6 statements.

    Raises IdempotencyRecord.DoesNotExist.
    """
    record = (
        IdempotencyRecord.objects.select_related("run__lease")
        .annotate(now=_NOW)
        .get(operation_id=operation_id, tenant=tenant)
    )
    run = record.run
    records = _records(run.id)
    events = list(
        timeline.rows_of(
            Event.objects.filter(
                run_id=run.id,
                task_key=record.task_key,
                type__startswith="external.",
                seq__gt=max(0, run.lease.last_seq - MOST_SCANNED),
            ).order_by("-seq")[:20]
        )
    )
    _, notable = _notable(run)
    received = InboxItem.objects.filter(run_id=run.id, moved_seq__isnull=True).order_by("id")
    return EffectPage(
        record=record,
        run=run,
        now=record.now,
        hand_over=_hand_over(run, records, _newest(notable, _ERRORS)),
        events=events,
        received=list(received[:20]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPage:
    """One question with the run that asks it."""

    interrupt: Interrupt
    run: Run
    now: datetime
    received: list[InboxItem]  # an answer that no worker has taken yet


def question_page(interrupt_id: UUID, *, tenant: str) -> QuestionPage:
    """Return one question; Interrupt.DoesNotExist for a foreign tenant. 2 statements."""
    interrupt = (
        Interrupt.objects.select_related("run__lease")
        .annotate(now=_NOW)
        .get(id=interrupt_id, run__tenant=tenant)
    )
    received = InboxItem.objects.filter(
        run_id=interrupt.run_id,
        moved_seq__isnull=True,
        type=EventType.INTERRUPT_ANSWERED,
        task_key=interrupt.task_key,
    )
    return QuestionPage(
        interrupt=interrupt,
        run=interrupt.run,
        now=interrupt.now,
        received=list(received[:5]),
    )


# What an operator looks at -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Everything that needs an operator, each list bounded."""

    now: datetime
    blocked: list[RunRow]
    blocked_count: Bounded
    unknown: list[IdempotencyRecord]
    stuck: list[RunRow]  # lease expired, or due and not taken
    received: list[InboxItem]
    questions: list[Interrupt]
    sweeper: Sweeper | None
    sweep_is_late: bool
    outbox: list[OutboxMessage]
    outbox_pending: Bounded
    outbox_dead: Bounded


# A run that is due is taken within moments; later than this somebody should know.
LATE = 30  # seconds

# Each half from its own partial index: an OR over both tables, or a clock that moves within the
# statement, would read a million runs.
_STUCK = """
(SELECT run.id FROM durable_lease AS lease JOIN durable_run AS run ON run.id = lease.run_id
    WHERE run.tenant = %s AND lease.owner IS NOT NULL
    AND lease.expires_at < statement_timestamp() - make_interval(secs => %s) LIMIT %s)
UNION ALL
(SELECT id FROM durable_run WHERE tenant = %s AND wake_at IS NOT NULL
    AND wake_at < statement_timestamp() - make_interval(secs => %s) ORDER BY wake_at LIMIT %s)
"""
_NOT_SENT = """
(SELECT id FROM durable_outboxmessage WHERE status = 'dead' ORDER BY id DESC LIMIT %s)
UNION ALL
(SELECT id FROM durable_outboxmessage WHERE status IN ('pending', 'sending')
    ORDER BY next_at LIMIT %s)
"""


def operations(*, tenant: str, size: int = PAGE) -> Operations:
    """Return what the operations page shows. 8 statements."""
    counts, now, _ = _counts(tenant)
    sweeper = Sweeper.objects.first()
    runs = Run.objects.filter(tenant=tenant)
    blocked = blocked_runs(runs, size)
    # Sorted here: asked for an order, PostgreSQL walks the million runs in it.
    stuck = sorted(
        _with_lease(
            runs.filter(
                id__in=RawSQL(_STUCK, [tenant, LATE, size, tenant, LATE, size])  # noqa: S611
            )
        ),
        key=lambda run: run.created_at,
    )
    unknown = unknown_records(tenant=tenant, size=size)
    received = received_items(tenant=tenant, size=size)
    pending, dead, outbox = _outbox(size)
    questions = Interrupt.objects.filter(
        status=InterruptStatus.OPEN, run__tenant=tenant, run__status=RunStatus.WAITING
    )
    return Operations(
        now=now,
        blocked=[_row(run, now) for run in blocked],
        blocked_count=counts[View.NEEDS_OPERATOR],
        unknown=unknown,
        stuck=[_row(run, now) for run in stuck[:size]],
        received=received,
        questions=list(questions.select_related("run").order_by("created_at")[:size]),
        sweeper=sweeper,
        sweep_is_late=explain.sweep_is_late(
            sweeper.swept_at if sweeper else None,
            now,
            interval=conf.sweep_interval(),
        ),
        outbox=outbox,
        outbox_pending=pending,
        outbox_dead=dead,
    )


def _row(run: Run, now: datetime) -> RunRow:
    seen = _snapshot(run, now=now, is_brief=True)
    return RunRow(run=run, explanation=explain.explain(seen))


def blocked_runs(runs: QuerySet[Run], size: int = PAGE) -> list[Run]:
    """The blocked among `runs`, newest first. 1 statement."""
    blocked = runs.filter(status=RunStatus.BLOCKED)
    return list(_with_lease(blocked).order_by("-created_at")[:size])


def unknown_records(*, tenant: str, size: int = PAGE) -> list[IdempotencyRecord]:
    """A tenant's outside actions of which nobody knows the outcome. 1 statement."""
    return list(
        IdempotencyRecord.objects.filter(tenant=tenant, status=RecordStatus.UNKNOWN)
        .select_related("run")
        .defer("proposed_request", "sent_request", "response", "run__input", "run__output")
        .order_by(F("started_at").asc(nulls_last=True))[:size]
    )


def received_items(*, tenant: str, size: int = PAGE) -> list[InboxItem]:
    """Facts from outside that no worker has taken yet, oldest first. 1 statement."""
    runs = Run.objects.filter(tenant=tenant)
    waiting = InboxItem.objects.filter(moved_seq__isnull=True, run_id__in=runs.values("id"))
    return list(waiting.order_by("id")[:size])


def _outbox(size: int) -> tuple[Bounded, Bounded, list[OutboxMessage]]:
    """Bounded counts of waiting and dead messages, and the oldest of both. 2 statements."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT
                (SELECT count(*) FROM (SELECT 1 FROM durable_outboxmessage
                    WHERE status IN ('pending', 'sending') LIMIT %(most)s) AS found),
                (SELECT count(*) FROM (SELECT 1 FROM durable_outboxmessage
                    WHERE status = 'dead' LIMIT %(most)s) AS found)""",
            {"most": MOST_COUNTED + 1},
        )
        counts = [
            Bounded(number=min(number, MOST_COUNTED), more=number > MOST_COUNTED)
            for number in cursor.fetchone()
        ]
    not_sent = OutboxMessage.objects.filter(
        id__in=RawSQL(_NOT_SENT, [size, size])  # noqa: S611
    )
    return counts[0], counts[1], list(not_sent.defer("payload").order_by("next_at")[:size])


def pretty(text: str | None) -> str:
    """Stored JSON with line breaks, for reading. The stored text itself is what counts."""
    if text is None:
        return ""
    try:
        return json.dumps(canonical.loads(text), ensure_ascii=False, indent=2)
    except InvalidValue:
        return text


def is_live(run: Run) -> bool:
    """Tell whether a page about this run may change under its reader."""
    return run.status not in FINAL_RUN_STATUSES
