"""The Celery side: three thin tasks, and the hints that wake them."""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import UUID, uuid4

from celery import shared_task

from durable import engine, outbox, sweeper

logger = logging.getLogger(__name__)


@shared_task(name="durable.advance")
def advance(run_id: str) -> None:
    """Bring one run as far as it goes; does nothing for a run that is not due."""
    engine.advance(UUID(run_id))


# Seconds. A relay begins no message once its own claim is over; without an end for the last one,
# consumers that hang would take the worker's processes one after the other.
RELAY_LIMIT = 2 * int(outbox.CLAIM.total_seconds())


@shared_task(name="durable.relay", soft_time_limit=RELAY_LIMIT)
def relay() -> None:
    """Send due outbox messages."""
    outbox.relay()


@shared_task(name="durable.sweep")
def sweep() -> None:
    """Look once for what lost messages left behind."""
    sweeper.sweep(uuid4())


# Seconds without hints after one could not be sent: a dead broker must not cost every caller its
# time-out, and the sweep finds the runs anyway.
SILENCE = 2.0
_silent_until = 0.0


def hint(sender: Any, run_id: UUID, **kwargs: Any) -> None:
    """Tell a worker that a run has something to do. May be lost, late or repeated."""
    _publish(advance, str(run_id))


def hint_relay(sender: Any, **kwargs: Any) -> None:
    """Tell a worker that a message waits to be relayed."""
    _publish(relay)


def _publish(task: Any, *args: str) -> None:
    global _silent_until
    if time.monotonic() < _silent_until:
        return
    try:
        task.delay(*args)
    except Exception as error:
        _silent_until = time.monotonic() + SILENCE
        # One line: a dead broker is no fault of the caller, and the sweep makes up for it.
        logger.warning("a hint was not sent, the sweep will find it: %s", error)
