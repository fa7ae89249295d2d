"""What a run that seems stuck has done last, and what it has left open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from durable import timeline
from durable.models import Event, IdempotencyRecord, Run
from durable.queries.counts import Bounded, bounded
from durable.statuses import EventType, RecordStatus

# Facts about a run are looked for in this many of its last events.
MOST_SCANNED = 50_000

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
    epoch: int
    lease_expires_at: datetime | None
    lease_held: bool
    completed: int
    last_completed: timeline.EventRow | None
    unfinished: list[str]
    outbox_pending: Bounded
    last_error: timeline.EventRow | None
    scanned_all: bool  # False: the counts cover only the last MOST_SCANNED events


def diagnose(
    run: Run,
    records: list[IdempotencyRecord],
    occurred: Mapping[str, int],
    notable: Mapping[str, timeline.EventRow],
) -> Diagnosis:
    """Answer from what the page of the run has read; `occurred`: how often each type did."""
    lease = run.lease
    pending: int = run.outbox_pending  # type: ignore[attr-defined]
    checkpoint = _checkpoint(run)
    return Diagnosis(
        checkpoint=checkpoint,
        next_nodes=_next_nodes(run, checkpoint, notable),
        worker=lease.worker,
        epoch=lease.epoch,
        lease_expires_at=lease.expires_at,
        lease_held=lease.owner is not None,
        completed=sum(occurred.get(type_, 0) for type_ in _COMPLETED[:2]),
        last_completed=_newest(notable, _COMPLETED),
        unfinished=_unfinished(run, records, notable),
        outbox_pending=bounded(pending),
        last_error=last_error(notable),
        scanned_all=lease.last_seq <= MOST_SCANNED,
    )


def _checkpoint(run: Run) -> LastCheckpoint | None:
    """The last checkpoint, as `run_pages` has read it."""
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


def notable_events(run: Run) -> tuple[dict[str, int], dict[str, timeline.EventRow]]:
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


def last_error(notable: Mapping[str, timeline.EventRow]) -> timeline.EventRow | None:
    """The newest of the events that say what went wrong."""
    return _newest(notable, _ERRORS)


def _newest(
    events: Mapping[str, timeline.EventRow], types: Iterable[str]
) -> timeline.EventRow | None:
    return max(
        (events[type_] for type_ in types if type_ in events),
        key=lambda event: event.seq,
        default=None,
    )
