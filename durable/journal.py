"""Writes to a run's log, each under the run's fence. The engine's hot path, as SQL.

One connection per process, one lock around each write until its COMMIT is answered: what this
process believes about a log's head is true before anything else is sent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import connection as django_connection
from psycopg.rows import dict_row
from psycopg.types.numeric import Int8

from durable import conf, sql
from durable.connections import Link, open_link
from durable.errors import CancelRequestedError, DurableError, LeaseLost, NotApproved
from durable.gate import Statement
from durable.leases import Fence
from durable.statuses import EventType

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """An event about to be written. `payload` is canonical JSON."""

    type: EventType
    payload: str = "{}"
    task_key: str = ""
    node: str = ""
    actor: str = ""


class RowChanged(DurableError):
    """A row is no longer as it was read; look again."""


class KeyTaken(DurableError):
    """The idempotency key is taken: `how` says in which way, `operation_id` by which record."""

    def __init__(self, how: str, operation_id: str) -> None:
        super().__init__(f"the key is taken: {how}")
        self.how = how
        self.operation_id = operation_id


class RowBusy(DurableError):
    """Somebody held a row for longer than a lease may wait; nothing was written."""


class KeyMet(DurableError):
    """The key has a record already, in whatever state."""


class InboxWaiting(DurableError):
    """Something was received; it must be moved into the log first."""


APPEND = "SELECT durable_append_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
BEGIN = "BEGIN"
# Nobody may keep an executor waiting for a lock beyond its own lease.
HOLD = """
SELECT set_config('lock_timeout', %s, true), durable_hold_v1(%s, %s, %s, %s)
"""
HEAD = """
SELECT last_seq, cancel_requested, phase, expires_at - clock_timestamp()
FROM durable_lease WHERE run_id = %s
"""
COMMIT = "COMMIT"
WRITE = "SELECT durable_write_v1(%s, %s, %s, %s, %s, %s, %s)"

_ERRORS = {
    "SF002": CancelRequestedError,
    "SF003": NotApproved,
    "SF004": RowChanged,
    "SF011": KeyMet,
    "55P03": RowBusy,  # lock_not_available
    "40P01": RowBusy,  # deadlock_detected
}


def _translate(error: psycopg.Error, fence: Fence) -> DurableError:
    """Turn what the database raised into the engine's words."""
    state = error.sqlstate or ""
    if state == "SF001":
        return fence.lose(stolen=True)
    if state == "SF010":
        return KeyTaken(error.diag.message_primary or "", error.diag.message_detail or "")
    if state == "SF020":
        return InboxWaiting()
    if state in _ERRORS:
        return _ERRORS[state](error.diag.message_primary or "")
    if state.startswith("23"):
        return RowChanged(str(error))
    # No answer, or one we cannot read: an ambiguous commit counts as a lost lease.
    logger.warning("journal write of run %s failed: %s", fence.run_id, error)
    return fence.lose(stolen=False)


class Journal:
    """This process's connection to the logs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._link: Link | None = None

    def link(self) -> Link:
        """The open connection; opened on first use. Hold `lock`."""
        if self._link is None or self._link.closed or self._link.broken:
            self._link = open_link("journal")
        return self._link

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self.lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    @contextmanager
    def _writing(self, fence: Fence) -> Iterator[Link]:
        """Span one write until it is answered; whatever fails is said in the engine's words."""
        with self.lock:
            fence.check()
            try:
                link = self.link()
                link.patience = max(fence.deadline - time.monotonic(), 0.05)
                yield link
            except psycopg.Error as error:
                self._recover()
                raise _translate(error, fence) from error

    def _recover(self) -> None:
        """Leave no half-open transaction behind; a connection in doubt is closed."""
        link = self._link
        if link is None or link.closed:
            return
        try:
            link.rollback()
        except psycopg.Error:
            link.close()

    def append(self, fence: Fence, fact: Fact, *, sync: bool) -> None:
        """Append one event in one statement and one round trip. Raises LeaseLost."""
        with self._writing(fence) as link:
            sent = time.monotonic()
            row = link.execute(
                APPEND,
                (
                    fence.run_id,
                    fence.owner,
                    Int8(fence.epoch),
                    Int8(fence.last_seq),
                    fence.ttl,
                    sync or not conf.relaxed_commits(),
                    fact.type.value,
                    fact.node,
                    fact.task_key,
                    fact.actor,
                    fact.payload,
                ),
            ).fetchone()
            if row is None or row[0] is None:
                raise fence.lose(stolen=True)
            fence.last_seq += 1
            fence.confirm(sent=sent, cancel_requested=row[0])

    def write(self, fence: Fence, *statements: Statement) -> list[list[tuple[Any, ...]]]:
        """Run the statements in one transaction that holds the lease; one round trip.

        Returns each statement's rows. Commits synchronously. Raises LeaseLost, and for what a
        statement refused: CancelRequestedError, NotApproved, RowChanged, KeyTaken, InboxWaiting.
        """
        with self._writing(fence) as link:
            sent = time.monotonic()
            with link.pipeline():
                link.execute(BEGIN)
                link.execute(HOLD, _hold_parameters(fence))
                cursors = [link.execute(s.sql, s.params) for s in statements]
                head = link.execute(HEAD, (fence.run_id,))
                commit = link.execute(COMMIT)
            rows = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
            if commit.statusmessage != "COMMIT":
                raise fence.lose(stolen=False)
            self._advance(fence, head.fetchone(), sent)
            return rows

    def call(self, fence: Fence, function: str, params: Sequence[Any], *, events: int) -> Any:
        """Call one function that holds the lease and appends `events`, in one round trip.

        The function takes run, owner, epoch, seq and lock timeout first. Raises like `write`.
        """
        with self._writing(fence) as link:
            sent = time.monotonic()
            milliseconds, *hold = _hold_parameters(fence)
            row = link.execute(function, (*hold, milliseconds, *params)).fetchone()
            fence.last_seq += events
            fence.confirm(sent=sent, cancel_requested=False)
            return row[0] if row else None

    def join(self, fence: Fence, statements: Sequence[Statement]) -> None:
        """Run the statements, lease held, in the open transaction of Django's connection.

        The caller holds `lock` from here until its COMMIT is answered, then calls `joined`.
        """
        fence.check()
        try:
            with django_connection.cursor() as cursor:
                # Deferred constraints first: nothing may fail after the fence was checked.
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
                cursor.execute(HOLD, _hold_parameters(fence))
                for statement in statements:
                    cursor.execute(statement.sql, statement.params)
        except Exception as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.Error) and not (cause.sqlstate or "").startswith("23"):
                raise _translate(cause, fence) from error
            raise

    def joined(self, fence: Fence, *, written: int, sent: float) -> None:
        """The transaction that `join` wrote into was committed."""
        fence.last_seq += written
        fence.confirm(sent=sent, cancel_requested=False)

    def _advance(self, fence: Fence, head: tuple[Any, ...] | None, sent: float) -> None:
        if head is None:
            raise fence.lose(stolen=True)
        fence.last_seq, cancel_requested, phase, remaining = head
        fence.phase = type(fence.phase)(phase)
        # A transaction that wrote no event did not renew: count what is really left.
        renewed = sent - (fence.ttl - remaining).total_seconds()
        fence.confirm(sent=renewed, cancel_requested=cancel_requested)

    def read(self, *statements: Statement) -> list[list[dict[str, Any]]]:
        """Run reads, one round trip for all. Raises LeaseLost when the database is away."""
        with self.lock:
            try:
                link = self.link()
                link.patience = conf.lease_ttl().total_seconds()
                with link.pipeline():
                    cursors = [
                        link.cursor(row_factory=dict_row).execute(s.sql, s.params)
                        for s in statements
                    ]
                return [cursor.fetchall() for cursor in cursors]
            except psycopg.Error as error:
                self._recover()
                raise LeaseLost(f"the database is away: {error}") from error

    def keep_evidence(
        self, fence: Fence, *, task_key: str, kind: str, payload: str, operation_id: object = None
    ) -> None:
        """Store what an executor learned after it lost its lease. Unfenced, never an outcome."""
        with self.lock:
            try:
                self.link().execute(
                    "INSERT INTO durable_evidence (run_id, operation_id, task_key, epoch, kind,"
                    " payload) VALUES (%s, %s, %s, %s, %s, %s)",
                    (fence.run_id, operation_id, task_key, fence.epoch, kind, payload),
                )
            except psycopg.Error as error:
                self._recover()
                logger.warning("evidence of run %s was not stored: %s", fence.run_id, error)


def _hold_parameters(fence: Fence) -> tuple[Any, ...]:
    milliseconds = int(fence.ttl.total_seconds() * 1000 / 3)
    return (
        f"{milliseconds}ms",
        fence.run_id,
        fence.owner,
        Int8(fence.epoch),
        Int8(fence.last_seq),
    )


def written(fence: Fence, fact: Fact) -> Statement:
    """The statement that appends `fact` in a transaction that holds the lease."""
    return Statement(
        sql=WRITE,
        params=(
            fence.run_id,
            fence.ttl,
            fact.type.value,
            fact.node,
            fact.task_key,
            fact.actor,
            fact.payload,
        ),
    )


_journals: dict[int, Journal] = {}


def journal() -> Journal:
    """This process's journal; a forked child opens its own."""
    return _journals.setdefault(os.getpid(), Journal())


def harden() -> None:
    """Wait until everything already visible is on disk.

    Called after reading and before answering with anything that shows a live run (the output
    commit rule): what a person saw, and may act on, survives a crash of the database.
    """
    if sql.value("SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()"):
        # A commit of its own; WAL is ordered, so it carries all that came before it.
        sql.rows("SELECT pg_logical_emit_message(true, 'standfast', '')")
