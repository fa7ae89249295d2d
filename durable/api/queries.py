"""What the API reads of runs. Each list is bounded, in rows and in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

from django.db.models import F, Func, IntegerField, Model, Q

from durable.errors import InterruptNotFound, RecordNotFound, RunNotFound
from durable.models import Event, IdempotencyRecord, Interrupt, Run
from durable.queries import Position

Row = TypeVar("Row", bound=Model)

PAGE = 50
MOST_EVENTS = 500
# Payloads of one page of events together; one may be as large as the largest value.
MOST_EVENT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Row]):
    """Some rows, and where the next page begins: None after the last."""

    rows: list[Row]
    next: Position | UUID | int | None


def run(run_id: UUID, *, tenant: str) -> Run:
    """One run with its lease. 1 statement. Raises RunNotFound, for another tenant's too."""
    found = Run.objects.select_related("lease").filter(id=run_id, tenant=tenant).first()
    if found is None:
        raise RunNotFound
    return found


def runs(
    *, tenant: str, status: str | None, workflow: str | None, after: Position | None, size: int
) -> Page[Run]:
    """One page of runs, newest first, without what only one run's own answer shows. 1 statement."""
    found = Run.objects.select_related("lease").filter(tenant=tenant)
    if status is not None:
        found = found.filter(status=status)
    if workflow is not None:
        found = found.filter(workflow=workflow)
    if after is not None:
        # The first condition lets the index start there.
        found = found.filter(created_at__lte=after.at)
        found = found.filter(Q(created_at__lt=after.at) | Q(id__lt=after.id))
    found = found.defer("input", "output", "error").order_by("-created_at", "-id")
    rows = list(found[: size + 1])
    last = rows[size - 1] if len(rows) > size else None
    return Page(rows=rows[:size], next=Position(last.created_at, last.id) if last else None)


def interrupts(
    *, tenant: str, run_id: UUID | None, status: str | None, after: UUID | None, size: int
) -> Page[Interrupt]:
    """One page of questions, newest first, as their ids are. 1 statement."""
    found = Interrupt.objects.filter(run__tenant=tenant)
    if run_id is not None:
        found = found.filter(run_id=run_id)
    if status is not None:
        found = found.filter(status=status)
    if after is not None:
        found = found.filter(id__lt=after)
    rows = list(found.order_by("-id")[: size + 1])
    return Page(rows=rows[:size], next=rows[size - 1].id if len(rows) > size else None)


def events(run_id: UUID, *, tenant: str, after: int, size: int) -> Page[Event]:
    """The events of a run after a number, oldest first. 3 statements. Raises RunNotFound."""
    if not Run.objects.filter(id=run_id, tenant=tenant).exists():
        raise RunNotFound
    log = Event.objects.filter(run_id=run_id, seq__gt=after).order_by("seq")
    length = Func(F("payload"), function="octet_length", output_field=IntegerField())
    ahead = list(log.annotate(length=length).values_list("seq", "length")[: size + 1])
    last = _last_that_fits(ahead[:size])
    rows = list(log.filter(seq__lte=last)) if last else []
    return Page(rows=rows, next=last if ahead and ahead[-1][0] != last else None)


def _last_that_fits(ahead: list[tuple[int, int]]) -> int | None:
    """The number of the last event of a page; a page has one event at least."""
    last, total = None, 0
    for seq, length in ahead:
        total += length
        if last is not None and total > MOST_EVENT_BYTES:
            break
        last = seq
    return last


def interrupt(interrupt_id: UUID, *, tenant: str) -> Interrupt:
    """One question. 1 statement. Raises InterruptNotFound, for another tenant's too."""
    found = Interrupt.objects.filter(id=interrupt_id, run__tenant=tenant).first()
    if found is None:
        raise InterruptNotFound
    return found


def effect(operation_id: UUID, *, tenant: str) -> IdempotencyRecord:
    """One outside action. 1 statement. Raises RecordNotFound, for another tenant's too."""
    found = IdempotencyRecord.objects.filter(operation_id=operation_id, tenant=tenant).first()
    if found is None:
        raise RecordNotFound
    return found
