"""One outside action, and those of which nobody knows the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import F

from durable import timeline
from durable.models import Event, IdempotencyRecord, InboxItem, Run
from durable.queries import diagnoses, run_pages
from durable.queries.counts import NOW, PAGE
from durable.queries.run_pages import HandOver
from durable.statuses import Phase, RecordStatus


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
    def is_turning_back(self) -> bool:
        """The run undoes what it did, or is about to."""
        lease = self.run.lease
        return lease.cancel_requested or lease.phase == Phase.COMPENSATING

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
        .annotate(now=NOW)
        .get(operation_id=operation_id, tenant=tenant)
    )
    run = record.run
    records = run_pages.records_of(run.id)
    events = list(
        timeline.rows_of(
            Event.objects.filter(
                run_id=run.id,
                task_key=record.task_key,
                type__startswith="external.",
                seq__gt=max(0, run.lease.last_seq - diagnoses.MOST_SCANNED),
            ).order_by("-seq")[:20]
        )
    )
    _, notable = diagnoses.notable_events(run)
    received = InboxItem.objects.filter(run_id=run.id, moved_seq__isnull=True).order_by("id")
    return EffectPage(
        record=record,
        run=run,
        now=record.now,
        hand_over=run_pages.hand_over_of(run, records, diagnoses.last_error(notable)),
        events=events,
        received=list(received[:20]),
    )


def unknown_records(*, tenant: str, size: int = PAGE) -> list[IdempotencyRecord]:
    """A tenant's outside actions of which nobody knows the outcome. 1 statement."""
    return list(
        IdempotencyRecord.objects.filter(tenant=tenant, status=RecordStatus.UNKNOWN)
        .select_related("run")
        .defer("proposed_request", "sent_request", "response", "run__input", "run__output")
        .order_by(F("started_at").asc(nulls_last=True))[:size]
    )
