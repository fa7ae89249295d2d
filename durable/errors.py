"""Every error of the engine. A class's docstring is its default message."""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import ClassVar

from durable.statuses import FailureClass


class DurableError(Exception):
    """Something went wrong in the engine."""

    code: ClassVar[str] = "ENGINE"

    def __init__(self, message: str = "") -> None:
        super().__init__(message or inspect.cleandoc(self.__doc__ or ""))


# Refused at the door --------------------------------------------------------------------


class InvalidValue(DurableError):
    """The value cannot be stored as JSON."""

    code = "INVALID_VALUE"

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path or 'value'}: {reason}")
        self.path = path
        self.reason = reason


class ValueTooLarge(InvalidValue):
    """The value is larger than what is stored."""


class WorkflowUnknown(DurableError):
    """No installed app registers this workflow."""

    code = "WORKFLOW_UNKNOWN"


class RunNotFound(DurableError):
    """There is no such run."""

    code = "RUN_NOT_FOUND"


class StartKeyConflict(DurableError):
    """A run with this start key exists and was started with another input."""

    code = "START_KEY_CONFLICT"


class RunEnded(DurableError):
    """The run has ended; nothing can be changed any more."""

    code = "RUN_ENDED"


class InterruptNotFound(DurableError):
    """There is no such question."""

    code = "INTERRUPT_NOT_FOUND"


class InterruptClosed(DurableError):
    """The question is no longer open; the recorded answer stands."""

    code = "INTERRUPT_CLOSED"


class RecordNotFound(DurableError):
    """There is no such outside action."""

    code = "RECORD_NOT_FOUND"


class NotUnknown(DurableError):
    """The outcome of this action is already known."""

    code = "NOT_UNKNOWN"


class TooEarly(DurableError):
    """The first call may still land; wait until its deadline and settling time are over."""

    code = "TOO_EARLY"

    def __init__(self, message: str = "", *, until: datetime | None = None) -> None:
        super().__init__(message)
        self.until = until


class NotBlocked(DurableError):
    """The run is not blocked."""

    code = "NOT_BLOCKED"


# Misuse of the authoring API ---------------------------------------------------------------


class OutsideRun(DurableError):
    """Recorded calls work only inside the body of an active run."""

    code = "OUTSIDE_RUN"


class Misplaced(DurableError):
    """Recorded calls are not allowed here."""

    code = "MISPLACED"


# Outcomes that a workflow body sees -----------------------------------------------------------


class Retryable(DurableError):
    """It did not happen and may be tried again.

    `retry_after` is the server's wish: seconds, or the raw header text. A bad wish is ignored.
    """

    code = "RETRYABLE"

    def __init__(self, message: str = "", *, retry_after: float | str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Failure(DurableError):
    """The outside answered: it did not happen, and trying the same again will not help."""

    code = "FAILURE"


class ApprovalRejected(DurableError):
    """A person rejected this action."""

    code = "APPROVAL_REJECTED"

    def __init__(self, message: str = "", *, by: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.by = by
        self.reason = reason


class ApprovalExpired(DurableError):
    """Nobody approved this action in time."""

    code = "APPROVAL_EXPIRED"


class InterruptExpired(DurableError):
    """Nobody answered the question in time."""

    code = "INTERRUPT_EXPIRED"


class KeyReused(DurableError):
    """The same idempotency key was used before with another request."""

    code = "KEY_REUSED"


class KeyCompensated(DurableError):
    """This action was done and undone; restart it with a new generation."""

    code = "KEY_COMPENSATED"


class StoredError(DurableError):
    """An error of a kind that can no longer be rebuilt."""

    code = "STORED_ERROR"

    def __init__(self, message: str = "", *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


# Inside the engine ----------------------------------------------------------------------------


class LeaseLost(DurableError):
    """This executor no longer owns the run."""

    code = "LEASE_LOST"


class CancelRequestedError(DurableError):
    """The run was cancelled before the effect could start."""

    code = "CANCEL_REQUESTED"


class NotApproved(DurableError):
    """No valid approval covers exactly this action."""

    code = "NOT_APPROVED"


# Why a run is blocked -----------------------------------------------------------------------------


class BlockCode:
    """The codes of a blocked run, and what may be done about each."""

    EFFECT_UNKNOWN = "EFFECT_UNKNOWN"
    NONDETERMINISM = "NONDETERMINISM"
    WORKFLOW_UNKNOWN = "WORKFLOW_UNKNOWN"
    KEY_EXPIRED = "KEY_EXPIRED"
    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    STATE_UNREADABLE = "STATE_UNREADABLE"
    APPROVAL_MISSING = "APPROVAL_MISSING"
    WORKER_LOST = "WORKER_LOST"


FAILURE_CLASSES: dict[str, FailureClass] = {
    BlockCode.EFFECT_UNKNOWN: FailureClass.UNKNOWN,
    BlockCode.KEY_EXPIRED: FailureClass.UNKNOWN,
    BlockCode.RETRIES_EXHAUSTED: FailureClass.RETRYABLE,
    BlockCode.WORKER_LOST: FailureClass.RETRYABLE,
    BlockCode.WORKFLOW_UNKNOWN: FailureClass.RETRYABLE,
}


def failure_class(code: str) -> FailureClass:
    """Whether waiting, a person's knowledge, or neither can help a run blocked with this code."""
    return FAILURE_CLASSES.get(code, FailureClass.NON_RECOVERABLE)
