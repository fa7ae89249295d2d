"""How outsiders reach a run: a row in their own transaction, and a nudge after their commit.

So nobody's long transaction ever holds a run's lease, and a lost nudge is found by the sweep.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.db import DatabaseError, transaction

from durable import actors, canonical, gate, sql
from durable.canonical import JSON
from durable.models import InboxItem
from durable.signals import run_ready
from durable.statuses import EventType

logger = logging.getLogger(__name__)


def put(
    run_id: UUID, type: EventType | str, *, actor: str, task_key: str = "", payload: JSON = None
) -> None:
    """Leave a fact for the run's executor, in the caller's transaction.

    Raises InvalidValue.
    """
    actors.check(actor)
    InboxItem.objects.create(
        run_id=run_id,
        type=EventType(type),
        task_key=task_key,
        actor=actor,
        payload=canonical.dumps(payload or {}, path="payload"),
    )
    cancel = type == EventType.CANCEL_REQUESTED
    # robust: another hook that raises must not cost the nudge, nor the nudge the caller's answer.
    transaction.on_commit(lambda: poke(run_id, cancel=cancel), robust=True)


def poke(run_id: UUID, *, cancel: bool = False) -> None:
    """Make the run due now, and tell the workers. A failure is logged: the sweep repairs it."""
    try:
        with transaction.atomic():
            # A stranger's lock must not hold up a page; the sweep tries again.
            sql.rows("SET LOCAL lock_timeout = '3s'")
            ready = sql.value("SELECT durable_poke_v1(%s)", run_id)
            guard = gate.current()
            if cancel and guard is not None:
                # Lease first, then approvals: from here on nobody can approve what will not run.
                close = guard.close(run_id)
                sql.rows(close.sql, *close.params)
    except DatabaseError:
        logger.warning("poke of run %s failed; the sweep will find it", run_id, exc_info=True)
        return
    if ready:
        announce(run_id)


def announce(run_id: UUID) -> None:
    """Send the hint; whoever fails to pass it on does not fail the caller."""
    for _, error in run_ready.send_robust(sender=None, run_id=run_id):
        if isinstance(error, Exception):
            logger.warning("hint for run %s was not sent: %s", run_id, error)
