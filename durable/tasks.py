"""The Celery side: three thin tasks and the hint. The only module that knows the broker."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from celery import shared_task

from durable import engine, outbox, sweeper


@shared_task(name="durable.advance")
def advance(run_id: str) -> None:
    """Bring one run as far as it goes; does nothing for a run that is not due."""
    engine.advance(UUID(run_id))


@shared_task(name="durable.relay")
def relay() -> None:
    """Send due outbox messages."""
    outbox.relay()


@shared_task(name="durable.sweep")
def sweep() -> None:
    """Look once for what lost messages left behind."""
    sweeper.sweep(uuid4())


def hint(sender: Any, run_id: UUID, **kwargs: Any) -> None:
    """Tell a worker that a run has something to do. May be lost, late or repeated."""
    advance.delay(str(run_id))
