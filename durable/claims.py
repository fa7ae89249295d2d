"""Taking a run: the fence, the row, and everything a body needs to go on."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from functools import cache
from uuid import UUID, uuid4

import psycopg

from durable import conf, registry
from durable.errors import LeaseLost
from durable.gate import Statement
from durable.history import History
from durable.journal import journal
from durable.leases import Fence
from durable.models import Run

logger = logging.getLogger(__name__)

CLAIM = """
SELECT epoch, last_seq, phase, cancel_requested
FROM durable_claim_v1(%s, %s, %s, %s, %s, %s, %s)
"""
CHECKPOINT = "SELECT 1 FROM durable_checkpoint WHERE run_id = %s LIMIT 1"
# All of the run's: its one node began with the first.
EVENTS = """
SELECT seq, type, task_key, actor, at, payload FROM durable_event WHERE run_id = %s ORDER BY seq
"""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A run that this process holds."""

    run: Run
    fence: Fence
    history: History
    has_checkpoint: bool


def worker_name() -> str:
    """How this process signs its claims."""
    return f"{socket.gethostname()}:{os.getpid()}"


def claim(run_id: UUID, *, previous: UUID | None = None) -> Claim | None:
    """Take the run if it is due, or held by a dead executor; None if it is neither.

    `previous` is this process's own lost owner id: its lease may be taken back at once.
    Raises LeaseLost when the database is away.
    """
    owner = uuid4()
    ttl = conf.lease_ttl()
    known = [definition.key for definition in registry.workflows()]
    taking = Statement(
        sql=CLAIM,
        params=(run_id, owner, previous, worker_name(), ttl, known, conf.max_attempts()),
    )
    try:
        sent = time.monotonic()
        rows = journal().read(taking)[0]
    except LeaseLost:
        # The connection went stale since the last run, in a restart of the database: the first
        # statement notices. If this very claim was committed, its lease is simply not ours.
        sent = time.monotonic()
        rows = journal().read(taking)[0]
    if not rows:
        return None
    row = rows[0]
    fence = Fence(
        run_id=run_id,
        owner=owner,
        epoch=row["epoch"],
        last_seq=row["last_seq"],
        phase=row["phase"],
        cancel_requested=row["cancel_requested"],
        ttl=ttl,
        margin=conf.lease_margin(),
        sent=sent,
    )
    return load(fence)


@cache
def _run_query() -> str:
    # By name: a newer release may have added columns that this code does not know.
    columns = ", ".join(str(field.column) for field in Run._meta.concrete_fields)
    return f"SELECT {columns} FROM durable_run WHERE id = %s"  # noqa: S608 - our own names


def load(fence: Fence) -> Claim:
    """Read what the holder of `fence` needs: the run, its last checkpoint, the events after it."""
    runs, checkpoints, events = journal().read(
        Statement(sql=_run_query(), params=(fence.run_id,)),
        Statement(sql=CHECKPOINT, params=(fence.run_id,)),
        Statement(sql=EVENTS, params=(fence.run_id,)),
    )
    history = History()
    history.add(events)
    return Claim(run=Run(**runs[0]), fence=fence, history=history, has_checkpoint=bool(checkpoints))


def refresh(claim: Claim) -> Claim:
    """Read again, under the same fence, after something was moved into the log."""
    return load(claim.fence)


def reclaim(run_id: UUID, previous: UUID, *, patience: float) -> Claim | None:
    """After a lost connection: take our own lease back, waiting `patience` seconds at most."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            return claim(run_id, previous=previous)
        except (LeaseLost, psycopg.Error):
            time.sleep(0.2)
    return None
