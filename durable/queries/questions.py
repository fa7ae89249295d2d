"""One question to a person, with the run that asks it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from durable.models import InboxItem, Interrupt, Run
from durable.queries.counts import NOW
from durable.statuses import EventType


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
        .annotate(now=NOW)
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
