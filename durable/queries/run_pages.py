"""The page of one run: what it did, why it stands still, and what to know to take over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Case, OuterRef, Subquery, Value, When, Window
from django.db.models.aggregates import Count
from django.db.models.expressions import RawSQL
from django.db.models.functions import JSONObject

from durable import canonical, timeline
from durable.errors import InvalidValue
from durable.explain import Explanation, explain
from durable.models import (
    Checkpoint,
    Event,
    Evidence,
    IdempotencyRecord,
    InboxItem,
    Interrupt,
    Run,
    Sweeper,
)
from durable.queries import diagnoses, run_lists
from durable.queries.counts import NOW
from durable.queries.diagnoses import Diagnosis
from durable.snapshots import OpenApproval, OpenQuestion, ReceivedItem, UnknownEffect
from durable.statuses import FINAL_RUN_STATUSES, InterruptStatus, RecordStatus, RunStatus

_MOST_RECORDS = 50


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
    hand_over: HandOver | None = None
    known: dict[str, Any] = field(default_factory=dict)

    def explanation(self, approvals: tuple[OpenApproval, ...] = ()) -> Explanation:
        """Why it is not moving, given the approvals that the caller has read."""
        return explain(
            run_lists.snapshot_of(self.run, now=self.now, approvals=approvals, **self.known)
        )


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
    records = records_of(run_id)
    interrupts = list(Interrupt.objects.filter(run_id=run_id).order_by("-created_at")[:20])
    received = list(
        InboxItem.objects.filter(run_id=run_id, moved_seq__isnull=True).order_by("id")[:20]
    )
    occurred, notable = diagnoses.notable_events(run)
    diagnosis = diagnoses.diagnose(run, records, occurred, notable)
    last_error = diagnosis.last_error
    found = timeline.page(run_id, before=before, lane=lane, size=events)
    unknown = [record for record in records if record.status == RecordStatus.UNKNOWN]
    return RunPage(
        run=run,
        now=run.now,  # type: ignore[attr-defined]
        records=records,
        records_left=(records[0].total if records else 0) - len(records),  # type: ignore[attr-defined]
        unknown=unknown,
        interrupts=interrupts,
        received=received,
        diagnosis=diagnosis,
        log=found,
        hand_over=hand_over_of(run, records, last_error)
        if run.status == RunStatus.BLOCKED
        else None,
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
            now=NOW,
            swept_at=Subquery(swept),
            outbox_pending=pending,
            checkpoint=Subquery(checkpoint[:1]),
        )
        .get(id=run_id, tenant=tenant)
    )


def records_of(run_id: UUID) -> list[IdempotencyRecord]:
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
        .order_by("open_first", "-created_at", "-operation_id")[:_MOST_RECORDS]
    )


def hand_over_of(
    run: Run,
    records: list[IdempotencyRecord],
    last_error: timeline.EventRow | None,
) -> HandOver:
    """What the records say, and what executors that had lost the run still learned. 1 statement."""
    done = (RecordStatus.SUCCEEDED, RecordStatus.COMPENSATED)
    return HandOver(
        goal=run.goal,
        operations=records,
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
        "unknown": tuple(_unknown_effect(record) for record in unknown),
        "questions": tuple(
            OpenQuestion(id=question.id, question=question.question, expires_at=question.expires_at)
            for question in interrupts
            if question.status == InterruptStatus.OPEN
        ),
        "received": tuple(
            ReceivedItem(type=item.type, actor=item.actor, received_at=item.received_at)
            for item in received
        ),
    }


def _unknown_effect(record: IdempotencyRecord) -> UnknownEffect:
    """The part of a record that the explanation needs."""
    return UnknownEffect(
        operation_id=record.operation_id,
        operation=record.operation,
        key=record.key,
        since=record.started_at,
        settle_until=record.settle_until,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """One event in full, with its neighbours in the log."""

    run: Run
    event: Event
    last_seq: int


def event_page(run_id: UUID, seq: int, *, tenant: str) -> EventPage:
    """Return one event in full; Run.DoesNotExist or Event.DoesNotExist. 2 statements."""
    run = run_lists.with_lease(Run.objects.filter(tenant=tenant)).get(id=run_id)
    event = Event.objects.get(run_id=run_id, seq=seq)
    return EventPage(run=run, event=event, last_seq=run.lease.last_seq)


def is_live(run: Run) -> bool:
    """Tell whether a page about this run may change under its reader."""
    return run.status not in FINAL_RUN_STATUSES


def pretty(text: str | None) -> str:
    """Stored JSON with line breaks, for reading. The stored text itself is what counts."""
    if text is None:
        return ""
    try:
        return json.dumps(canonical.loads(text), ensure_ascii=False, indent=2)
    except InvalidValue:
        return text
