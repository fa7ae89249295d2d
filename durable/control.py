"""How the engine stops a workflow's body: never an Exception, so that no `except` keeps it going.

Invariant 13: once a call was stopped this way, every later engine call of that context raises
again and records nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from durable.statuses import WaitingFor


class ControlFlow(BaseException):
    """Leaves the body of a workflow. Not an error of the workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a parked call waits for, and until when at the latest (database time)."""

    waiting_for: WaitingFor
    due: datetime | None = None
    record: UUID | None = None  # another run's idempotency record


class Suspend(ControlFlow):
    """This branch cannot go on now."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.waiting_for)
        self.wait = wait


class Abandon(ControlFlow):
    """The lease is lost: write nothing more, start nothing more."""


class Replay(ControlFlow):
    """What this executor believed is out of date, its lease is not: read again and re-enter."""


class CancelNow(ControlFlow):
    """The run is cancelled: undo instead of going on."""


class Block(ControlFlow):
    """A person must act before this run can go on."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason
