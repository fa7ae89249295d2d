"""States in a reader's words. Pure: each is a word, an icon and a tone, never a colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from approvals.statuses import ApprovalStatus, Choice
from durable.explain import Tone
from durable.statuses import EventType, InterruptStatus, MessageStatus, RecordStatus, RunStatus


@dataclass(frozen=True, slots=True)
class Word:
    """How a state is said and drawn."""

    text: str
    icon: str
    tone: Tone


NOT_KNOWN = Word("Not known", "question", "ended")

RUN: dict[str, Word] = {
    RunStatus.PENDING: Word("Not started", "clock", "calm"),
    RunStatus.RUNNING: Word("Working", "play", "working"),
    RunStatus.WAITING: Word("Waiting", "pause", "waiting"),
    RunStatus.BLOCKED: Word("Needs attention", "alert", "trouble"),
    RunStatus.SUCCEEDED: Word("Done", "check", "good"),
    RunStatus.FAILED: Word("Failed", "cross", "trouble"),
    RunStatus.CANCELLED: Word("Cancelled", "stop", "ended"),
}
LEFT = Word("Worker lost", "alert", "trouble")
CANCELLING = Word("Cancelling", "stop", "waiting")

RECORD: dict[str, Word] = {
    RecordStatus.PREPARED: Word("Nothing sent yet", "clock", "calm"),
    RecordStatus.RUNNING: Word("Call under way", "play", "working"),
    RecordStatus.SUCCEEDED: Word("Happened", "check", "good"),
    RecordStatus.FAILED: Word("Did not happen", "cross", "trouble"),
    RecordStatus.UNKNOWN: Word("Not sure if it happened", "question", "waiting"),
    RecordStatus.VOID: Word("Not needed", "stop", "ended"),
    RecordStatus.COMPENSATING: Word("Being undone", "undo", "working"),
    RecordStatus.COMPENSATED: Word("Undone", "undo", "ended"),
}

APPROVAL: dict[str, Word] = {
    ApprovalStatus.PENDING: Word("Waiting for a decision", "clock", "waiting"),
    ApprovalStatus.APPROVED: Word("Approved", "check", "good"),
    ApprovalStatus.REJECTED: Word("Rejected", "cross", "trouble"),
    ApprovalStatus.EXPIRED: Word("Expired", "clock", "ended"),
    ApprovalStatus.VOID: Word("Withdrawn", "stop", "ended"),
    ApprovalStatus.SUPERSEDED: Word("Replaced", "undo", "ended"),
}

CHOICE: dict[str, Word] = {
    Choice.APPROVE: Word("Approved", "check", "good"),
    Choice.REJECT: Word("Rejected", "cross", "trouble"),
}

QUESTION: dict[str, Word] = {
    InterruptStatus.OPEN: Word("Waiting for an answer", "question", "waiting"),
    InterruptStatus.ANSWERED: Word("Answered", "check", "good"),
    InterruptStatus.EXPIRED: Word("Expired", "clock", "ended"),
    InterruptStatus.VOID: Word("Withdrawn", "stop", "ended"),
}

MESSAGE: dict[str, Word] = {
    MessageStatus.PENDING: Word("Waiting to be sent", "clock", "waiting"),
    MessageStatus.SENDING: Word("Being sent", "play", "working"),
    MessageStatus.SENT: Word("Sent", "check", "good"),
    MessageStatus.DEAD: Word("Given up", "cross", "trouble"),
}

UNDO: dict[str, str] = {
    "reversible": "Can be undone completely",
    "remedy": "Can be made good, not undone",
    "manual": "Cannot be undone by us",
}

EVENT: dict[str, Word] = {
    EventType.RUN_CREATED: Word("Run created", "dot", "calm"),
    EventType.RUN_STARTED: Word("Run started", "play", "calm"),
    EventType.RUN_RESUMED: Word("Run continued", "play", "calm"),
    EventType.RUN_BLOCKED: Word("Run needs attention", "alert", "trouble"),
    EventType.RUN_SUCCEEDED: Word("Run finished", "check", "good"),
    EventType.RUN_FAILED: Word("Run failed", "cross", "trouble"),
    EventType.RUN_CANCELLED: Word("Run cancelled", "stop", "ended"),
    EventType.CANCEL_REQUESTED: Word("Cancel requested", "stop", "waiting"),
    EventType.RESUME_REQUESTED: Word("Another try requested", "play", "waiting"),
    EventType.GIVE_UP_REQUESTED: Word("Giving up requested", "stop", "waiting"),
    EventType.COMPENSATION_STARTED: Word("Undoing started", "undo", "working"),
    EventType.NODE_STARTED: Word("Begun", "play", "working"),
    EventType.NODE_COMPLETED: Word("Finished", "check", "good"),
    EventType.TASK_COMPLETED: Word("Finished", "check", "good"),
    EventType.TASK_FAILED: Word("Failed", "cross", "trouble"),
    EventType.TASK_RETRYING: Word("Will be tried again", "clock", "waiting"),
    EventType.EXTERNAL_REQUESTED: Word("Call under way", "play", "working"),
    EventType.EXTERNAL_RESOURCE: Word("Outside id received", "play", "working"),
    EventType.EXTERNAL_COMPLETED: Word("Happened", "check", "good"),
    EventType.EXTERNAL_FAILED: Word("Did not happen", "cross", "trouble"),
    EventType.EXTERNAL_UNKNOWN: Word("Not sure if it happened", "question", "waiting"),
    EventType.EXTERNAL_RECONCILED: Word("Service was asked", "question", "waiting"),
    EventType.EXTERNAL_RECONCILE_REQUESTED: Word("Asking the service", "question", "waiting"),
    EventType.EXTERNAL_RESOLVED: Word("Settled by a person", "check", "good"),
    EventType.EXTERNAL_REFUSED: Word("Not allowed, not sent", "stop", "trouble"),
    EventType.EXTERNAL_BUSY: Word("Another run is doing this", "clock", "waiting"),
    EventType.APPROVAL_REQUESTED: Word("Waiting for a decision", "clock", "waiting"),
    EventType.APPROVAL_DECIDED: Word("Decided", "check", "good"),
    EventType.INTERRUPT_WAITING: Word("Waiting for an answer", "question", "waiting"),
    EventType.INTERRUPT_ANSWERED: Word("Answered", "check", "good"),
    EventType.INTERRUPT_EXPIRED: Word("Expired", "clock", "ended"),
    EventType.TIMER_STARTED: Word("Sleeping", "clock", "waiting"),
    EventType.TIMER_FIRED: Word("Woke up", "check", "good"),
    EventType.CHECKPOINT_COMMITTED: Word("State saved", "dot", "calm"),
    EventType.LEASE_ACQUIRED: Word("Taken by a worker", "key", "calm"),
    EventType.LEASE_LOST: Word("Worker lost it", "alert", "trouble"),
    EventType.BUSINESS: Word("Recorded", "dot", "calm"),
}

_TABLES: dict[str, dict[str, Word]] = {
    "run": RUN,
    "record": RECORD,
    "approval": APPROVAL,
    "choice": CHOICE,
    "question": QUESTION,
    "message": MESSAGE,
    "event": EVENT,
}


def word(kind: str, state: str) -> Word:
    """How a state of this kind is said; a state that nobody knows is shown as not known."""
    return _TABLES[kind].get(state, NOT_KNOWN)
