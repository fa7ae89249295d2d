"""What is known of a run at one moment: frozen values, read by queries and judged by `explain`.

Pure: no database, and no clock but the one that is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from durable.statuses import RunStatus, WaitingFor


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApproval:
    """A request that nobody has decided yet."""

    id: UUID
    title: str
    decide_by: datetime
    asked: str = ""  # whom: "Finance (1 of 2)"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that nobody has answered yet."""

    id: UUID
    question: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEffect:
    """An outside action that may or may not have happened."""

    operation_id: UUID
    operation: str
    key: str
    since: datetime | None = None
    settle_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedItem:
    """A fact from outside that no executor has taken yet."""

    type: str
    actor: str
    received_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything the sentence depends on, read at `now` by the database's clock."""

    now: datetime
    status: RunStatus
    created_at: datetime
    waiting_for: WaitingFor = WaitingFor.NOTHING
    wake_at: datetime | None = None
    code: str = ""
    reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    last_event_at: datetime | None = None
    cancel_requested: bool = False
    lease_held: bool = False
    lease_expires_at: datetime | None = None
    epoch: int = 0
    worker: str = ""
    activity: str = ""
    last_error: str = ""
    approvals: tuple[OpenApproval, ...] = ()
    questions: tuple[OpenQuestion, ...] = ()
    unknown: tuple[UnknownEffect, ...] = ()
    received: tuple[ReceivedItem, ...] = ()
    swept_at: datetime | None = None  # when a worker last looked for lost work
    sweep_interval: float = 5.0  # seconds
    is_brief: bool = False  # one row of a list: approvals, questions and records were not read

    @property
    def since(self) -> datetime:
        """When it last moved."""
        return self.last_event_at or self.started_at or self.created_at

    @property
    def lease_expired(self) -> bool:
        """Its owner stopped renewing. A held lease without an end counts as expired."""
        return self.lease_held and (
            self.lease_expires_at is None or self.lease_expires_at <= self.now
        )

    @property
    def nobody_sweeps(self) -> bool:
        """No worker seems to be running. A list says so once, not in each of its rows."""
        return not self.is_brief and sweep_is_late(
            self.swept_at, self.now, interval=self.sweep_interval
        )


def sweep_is_late(swept_at: datetime | None, now: datetime, *, interval: float) -> bool:
    """Whether no worker has looked for lost work for several rounds of `interval` seconds."""
    return swept_at is None or (now - swept_at).total_seconds() > max(4 * interval, 10)
