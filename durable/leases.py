"""A claim's fence, and the thread that keeps it alive.

Invariant 1: an executor writes only under owner, epoch, last_seq and expiry; and it stops by its
own monotonic clock before the database would give its run to somebody else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import psycopg

from durable import conf
from durable.connections import Link, open_link
from durable.errors import LeaseLost
from durable.statuses import Phase

logger = logging.getLogger(__name__)


class Fence:
    """The right to write to one run's log, as its executor knows it."""

    def __init__(  # noqa: PLR0913 - the parts of a fence, all by name
        self,
        *,
        run_id: UUID,
        owner: UUID,
        epoch: int,
        last_seq: int,
        phase: str,
        cancel_requested: bool,
        ttl: timedelta,
        margin: float,
        sent: float,
    ) -> None:
        self.run_id = run_id
        self.owner = owner
        self.epoch = epoch
        self.last_seq = last_seq
        self.phase = Phase(phase)
        self.cancel_requested = cancel_requested
        self.ttl = ttl
        self.margin = margin
        self.activity = ""
        self.lost = False
        self.stolen = False  # the database said so; otherwise only we cannot be sure
        self.outlived = False  # our own clock said so: renewals do not get through
        self._confirmed = sent

    @property
    def deadline(self) -> float:
        """Monotonic time after which this executor must not act."""
        return self._confirmed + self.ttl.total_seconds() - self.margin

    def check(self) -> None:
        """Raise LeaseLost when the last confirmed renewal is too old, error or not."""
        if not self.lost and time.monotonic() >= self.deadline:
            self.lost = self.outlived = True
        if self.lost:
            raise LeaseLost

    def confirm(self, *, sent: float, cancel_requested: bool) -> None:
        """A write under this fence was answered; it had left at monotonic time `sent`."""
        self._confirmed = max(self._confirmed, sent)
        self.cancel_requested = self.cancel_requested or cancel_requested

    def lose(self, *, stolen: bool) -> LeaseLost:
        """Mark the lease as lost; returns the error to raise."""
        self.lost = True
        self.stolen = self.stolen or stolen
        return LeaseLost()

    @property
    def is_stale(self) -> bool:
        """Whether a third of the TTL passed since the last confirmed renewal."""
        return time.monotonic() - self._confirmed > self.ttl.total_seconds() / 3


# last_seq >= : a database that lost its tail must not keep an executor alive that remembers more.
RENEW = """
UPDATE durable_lease SET expires_at = clock_timestamp() + %s, activity = %s
WHERE run_id = %s AND owner = %s AND epoch = %s AND last_seq >= %s
    AND expires_at > clock_timestamp()
RETURNING cancel_requested
"""


class Heartbeat:
    """Renews the leases of this process from a thread with a connection of its own."""

    def __init__(self) -> None:
        self._fences: set[Fence] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self.is_failing = False  # renewals do not get through: nothing new should be taken

    @contextlib.contextmanager
    def watching(self, fence: Fence) -> Iterator[None]:
        """Keep `fence` alive while the block runs."""
        with self._lock:
            self._fences.add(fence)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._beat, name="durable-heartbeat", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._fences.discard(fence)

    def _beat(self) -> None:
        while True:
            time.sleep(max(conf.lease_ttl().total_seconds() / 8, 0.02))
            with self._lock:
                stale = [fence for fence in self._fences if fence.is_stale and not fence.lost]
            for fence in stale:
                self._renew(fence)

    def recovers(self) -> bool:
        """Whether renewals would get through again; asks by a connection of its own."""
        try:
            with open_link("heartbeat") as link:
                link.patience = conf.lease_ttl().total_seconds() / 3
                link.execute("SELECT 1")
        except psycopg.Error:
            return False
        self.is_failing = False
        return True

    def _open(self) -> Link:
        if self._link is None or self._link.closed:
            self._link = open_link("heartbeat")
        # Bounded: a hung connection must not keep the thread from other leases.
        self._link.patience = conf.lease_ttl().total_seconds() / 3
        return self._link

    def _drop(self) -> None:
        self.is_failing = True
        if self._link is not None:
            self._link.close()
            self._link = None

    def _renew(self, fence: Fence) -> None:
        sent = time.monotonic()
        known = fence.last_seq
        try:
            row = (
                self._open()
                .execute(
                    RENEW,
                    (fence.ttl, fence.activity, fence.run_id, fence.owner, fence.epoch, known),
                )
                .fetchone()
            )
        except psycopg.Error as error:
            logger.warning("lease of run %s not renewed: %s", fence.run_id, error)
            self._drop()
            return  # the fence's own clock decides
        self.is_failing = False
        if row is None:
            fence.lose(stolen=True)
        else:
            fence.confirm(sent=sent, cancel_requested=row[0])


_heartbeats: dict[int, Heartbeat] = {}


def heartbeat() -> Heartbeat:
    """This process's heartbeat; a forked child gets its own."""
    return _heartbeats.setdefault(os.getpid(), Heartbeat())
