"""One sentence for each state, case by case."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from durable import explain
from durable.errors import BlockCode
from durable.snapshots import OpenApproval, OpenQuestion, ReceivedItem, Snapshot, UnknownEffect
from durable.statuses import RunStatus, WaitingFor

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ID = uuid.UUID(int=7)


def seen(status=RunStatus.WAITING, **facts):
    """A run at noon whose workers are up."""
    given = {"now": NOON, "created_at": NOON - timedelta(hours=1), "swept_at": NOON}
    return Snapshot(status=status, **{**given, **facts})


def ago(**span):
    return NOON - timedelta(**span)


def ahead(**span):
    return NOON + timedelta(**span)


def approval(**facts):
    return OpenApproval(**{"id": ID, "title": "Charge 5", "decide_by": ahead(hours=2), **facts})


def effect(**facts):
    return UnknownEffect(**{"operation_id": ID, "operation": "charge", "key": "K-1", **facts})


def received(type_, actor="user:ana"):
    return ReceivedItem(type=type_, actor=actor, received_at=ago(seconds=4))


WAITING, RUNNING = RunStatus.WAITING, RunStatus.RUNNING
CASES = {
    "succeeded": (seen(RunStatus.SUCCEEDED, ended_at=NOON), "Finished successfully.", ()),
    "failed": (
        seen(RunStatus.FAILED, reason="card declined"),
        "Failed, and will not be tried again. Reason: card declined",
        (),
    ),
    "cancelled": (seen(RunStatus.CANCELLED), "Cancelled. Nothing more will happen.", ()),
    "busy": (
        seen(
            RUNNING, lease_held=True, lease_expires_at=ahead(seconds=9), activity="create_shipment"
        ),
        "A worker is busy on create_shipment.",
        ("cancel",),
    ),
    "lease expired": (
        seen(RUNNING, lease_held=True, lease_expires_at=ago(minutes=12)),
        "Its worker stopped 12 min ago without saying so, and no other has taken over yet.",
        ("cancel",),
    ),
    "lease expired, nobody sweeps": (
        seen(
            RUNNING,
            lease_held=True,
            lease_expires_at=ago(minutes=12),
            swept_at=ago(minutes=13),
        ),
        "Its worker stopped 12 min ago without saying so, and no other has taken over yet."
        " No worker has looked for work for 13 min; is one running?",
        ("start_worker", "cancel"),
    ),
    "pending": (
        seen(RunStatus.PENDING, wake_at=ago(seconds=1)),
        "Not started: no worker has taken it yet.",
        ("cancel",),
    ),
    "pending, no worker ever": (
        seen(RunStatus.PENDING, wake_at=ago(seconds=1), swept_at=None),
        "Not started: no worker has taken it yet."
        " No worker has ever looked for work; is one running?",
        ("start_worker", "cancel"),
    ),
    "pending until later": (
        seen(RunStatus.PENDING, wake_at=ahead(hours=2)),
        "Starts at 29 Nov 2026 14:00:00 UTC (in 2 h).",
        ("cancel",),
    ),
    "approval": (
        seen(approvals=(approval(),), wake_at=ahead(hours=2)),
        "Waiting for an approver to approve “Charge 5”, until 29 Nov 2026 14:00:00 UTC (in 2 h).",
        ("decide", "cancel"),
    ),
    "approval of a group": (
        seen(approvals=(approval(asked="Finance (1 of 2)"),)),
        "Waiting for Finance (1 of 2) to approve “Charge 5”,"
        " until 29 Nov 2026 14:00:00 UTC (in 2 h).",
        ("decide", "cancel"),
    ),
    "approval overdue": (
        seen(approvals=(approval(decide_by=ago(seconds=5)),)),
        "Nobody decided on “Charge 5” before 29 Nov 2026 11:59:55 UTC:"
        " it is not approved, and a worker has not recorded that yet.",
        ("cancel",),
    ),
    "decided, not taken": (
        seen(received=(received("approval.decided"),), wake_at=NOON),
        "The decision of ana is recorded; a worker has not taken it yet.",
        ("cancel",),
    ),
    "decided, no worker": (
        seen(received=(received("approval.decided"),), swept_at=ago(hours=1)),
        "The decision of ana is recorded; a worker has not taken it yet."
        " No worker has looked for work for 1 h; is one running?",
        ("start_worker", "cancel"),
    ),
    "question": (
        seen(questions=(OpenQuestion(id=ID, question="Which one?"),)),
        "Waiting for an answer: “Which one?”.",
        ("answer", "cancel"),
    ),
    "timer": (
        seen(waiting_for=WaitingFor.TIMER, wake_at=ahead(days=2, hours=4)),
        "Sleeping until 01 Dec 2026 16:00:00 UTC (in 2 d 4 h), as the workflow says.",
        ("cancel",),
    ),
    "retry": (
        seen(waiting_for=WaitingFor.RETRY, wake_at=ahead(seconds=90), last_error="Busy"),
        "A step failed and is tried again at 29 Nov 2026 12:01:30 UTC (in 1 min 30 s).",
        ("cancel",),
    ),
    "another run has the key": (
        seen(waiting_for=WaitingFor.RECORD),
        "Another run is doing the same outside action; this one continues when it ended.",
        ("cancel",),
    ),
    "unknown, can land": (
        seen(
            waiting_for=WaitingFor.RECONCILE,
            wake_at=ahead(seconds=20),
            unknown=(effect(settle_until=ahead(minutes=1)),),
        ),
        "Waiting: not sure if “charge” happened (key K-1). The first call may still land"
        " until 29 Nov 2026 12:01:00 UTC (in 1 min).",
        ("resolve", "cancel"),
    ),
    "blocked, unknown": (
        seen(RunStatus.BLOCKED, code=BlockCode.EFFECT_UNKNOWN, unknown=(effect(),)),
        "Stopped: not sure if “charge” happened (key K-1).",
        ("resolve", "give_up", "cancel"),
    ),
    "blocked, unknown, can land": (
        seen(
            RunStatus.BLOCKED,
            code=BlockCode.EFFECT_UNKNOWN,
            unknown=(effect(settle_until=ahead(minutes=1)),),
        ),
        "Stopped: not sure if “charge” happened (key K-1). The first call may still land"
        " until 29 Nov 2026 12:01:00 UTC (in 1 min).",
        ("resolve", "cancel"),
    ),
    "blocked, told to resume": (
        seen(RunStatus.BLOCKED, code="WORKER_LOST", received=(received("resume.requested"),)),
        "ana asked to try again; a worker has not taken it yet.",
        ("cancel",),
    ),
    "cancelling": (
        seen(RUNNING, cancel_requested=True, lease_held=True, lease_expires_at=ahead(seconds=9)),
        "Cancelling: nothing new starts, and what was done is being undone.",
        (),
    ),
    "cancelling, held up": (
        seen(cancel_requested=True, unknown=(effect(),)),
        "Cancelling, and held up: not sure if “charge” happened (key K-1).",
        ("resolve",),
    ),
    "due": (
        seen(wake_at=ago(seconds=3)),
        "Ready to continue for 3 s; no worker has taken it yet.",
        ("cancel",),
    ),
    "parked for nothing": (seen(), "Parked. Nothing is due.", ("cancel",)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_and_the_next_actions(case):
    snapshot, sentence, actions = CASES[case]
    said = explain.explain(snapshot)
    assert said.sentence == sentence
    assert tuple(action.name for action in said.actions) == actions


CODES = [value for name, value in vars(BlockCode).items() if name.isupper()]


@pytest.mark.parametrize("code", [*CODES, "SOMETHING_NEW", ""])
def test_every_block_code_has_a_sentence_and_an_action(code):
    said = explain.explain(seen(RunStatus.BLOCKED, code=code))
    assert said.sentence.startswith("Stopped")
    assert len(said.actions) >= 2


@pytest.mark.parametrize("status", RunStatus)
@pytest.mark.parametrize("waiting_for", WaitingFor)
@pytest.mark.parametrize("is_brief", [True, False])
def test_no_state_is_without_words(status, waiting_for, is_brief):
    said = explain.explain(seen(status, waiting_for=waiting_for, is_brief=is_brief))
    assert said.sentence.strip()


def test_a_list_does_not_claim_what_it_has_not_read():
    said = explain.explain(seen(RunStatus.BLOCKED, code=BlockCode.EFFECT_UNKNOWN, is_brief=True))
    assert said.sentence == "Stopped: not sure if an outside action happened."
