"""Every status of the engine, and the moves each may make. The database repeats both."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    PENDING = "pending"  # never claimed
    RUNNING = "running"  # claimed and not parked, whether its owner lives or not
    WAITING = "waiting"  # parked: for a person, a time, or another run
    BLOCKED = "blocked"  # a person must act
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_RUN_STATUSES = (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)

_LIVE = frozenset({RunStatus.WAITING, RunStatus.BLOCKED, *FINAL_RUN_STATUSES})
RUN_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING}),
    RunStatus.RUNNING: _LIVE,
    RunStatus.WAITING: frozenset({RunStatus.RUNNING}),
    RunStatus.BLOCKED: frozenset({RunStatus.RUNNING}),
    RunStatus.SUCCEEDED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}


class RecordStatus(StrEnum):
    """What is known about one outside action."""

    PREPARED = "prepared"  # the intent is stored, nothing was sent
    RUNNING = "running"  # a call may be on its way
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the outside said that it did not happen
    UNKNOWN = "unknown"  # it may or may not have happened
    VOID = "void"  # given up before anything was sent
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"


RECORD_MOVES: dict[RecordStatus, frozenset[RecordStatus]] = {
    RecordStatus.PREPARED: frozenset({RecordStatus.RUNNING, RecordStatus.VOID}),
    RecordStatus.RUNNING: frozenset(
        {RecordStatus.SUCCEEDED, RecordStatus.FAILED, RecordStatus.UNKNOWN}
    ),
    RecordStatus.UNKNOWN: frozenset({RecordStatus.SUCCEEDED, RecordStatus.FAILED}),
    RecordStatus.FAILED: frozenset({RecordStatus.RUNNING}),
    RecordStatus.SUCCEEDED: frozenset({RecordStatus.COMPENSATING}),
    RecordStatus.COMPENSATING: frozenset({RecordStatus.COMPENSATED}),
    RecordStatus.COMPENSATED: frozenset(),
    RecordStatus.VOID: frozenset({RecordStatus.PREPARED}),
}


class InterruptStatus(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    VOID = "void"


class MessageStatus(StrEnum):
    """The states of an outbox message."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    DEAD = "dead"  # gave up after its attempts; an operator sees it


class Phase(StrEnum):
    FORWARD = "forward"
    COMPENSATING = "compensating"


class FailureClass(StrEnum):
    RETRYABLE = "retryable"
    UNKNOWN = "unknown"
    NON_RECOVERABLE = "non_recoverable"


class WaitingFor(StrEnum):
    """Why a parked run is parked: what its page and the next claim say."""

    NOTHING = ""
    APPROVAL = "approval"
    ANSWER = "answer"
    TIMER = "timer"
    RETRY = "retry"
    RECONCILE = "reconcile"  # an outside call that may yet land
    RECORD = "record"  # another run holds the same idempotency key
    SEVERAL = "several"


class EventType(StrEnum):
    """The closed list of facts a run's log may hold."""

    RUN_CREATED = "run.created"
    RUN_STARTED = "run.started"
    RUN_RESUMED = "run.resumed"
    RUN_BLOCKED = "run.blocked"
    RUN_SUCCEEDED = "run.succeeded"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    CANCEL_REQUESTED = "cancel.requested"
    RESUME_REQUESTED = "resume.requested"
    GIVE_UP_REQUESTED = "give_up.requested"
    COMPENSATION_STARTED = "compensation.started"
    NODE_STARTED = "node.started"
    NODE_COMPLETED = "node.completed"
    TASK_COMPLETED = "task.completed"
    TASK_FAILED = "task.failed"
    TASK_RETRYING = "task.retrying"
    EXTERNAL_REQUESTED = "external.requested"
    EXTERNAL_RESOURCE = "external.resource"
    EXTERNAL_COMPLETED = "external.completed"
    EXTERNAL_FAILED = "external.failed"
    EXTERNAL_UNKNOWN = "external.unknown"
    EXTERNAL_RECONCILED = "external.reconciled"
    EXTERNAL_RECONCILE_REQUESTED = "external.reconcile_requested"
    EXTERNAL_RESOLVED = "external.resolved"
    EXTERNAL_REFUSED = "external.refused"
    EXTERNAL_BUSY = "external.busy"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_DECIDED = "approval.decided"
    INTERRUPT_WAITING = "interrupt.waiting"
    INTERRUPT_ANSWERED = "interrupt.answered"
    INTERRUPT_EXPIRED = "interrupt.expired"
    TIMER_STARTED = "timer.started"
    TIMER_FIRED = "timer.fired"
    CHECKPOINT_COMMITTED = "checkpoint.committed"
    LEASE_ACQUIRED = "lease.acquired"
    LEASE_LOST = "lease.lost"
    BUSINESS = "business"
