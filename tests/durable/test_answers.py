"""What a run's log already tells a body about an outside action."""

import json
from datetime import UTC, datetime

import pytest

from durable import answers, failures
from durable.answers import Answer
from durable.errors import Failure
from durable.history import StoredEvent
from durable.statuses import EventType

ERROR = failures.dump(Failure("refused"))


def event(type, **payload):
    return StoredEvent(
        seq=1,
        type=EventType(type),
        task_key="1",
        actor="",
        at=datetime(2026, 11, 29, tzinfo=UTC),
        text=json.dumps(payload),
    )


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event("external.completed", result={"id": "r1"})], Answer({"id": "r1"})),
        ([event("external.completed", result=None)], Answer(None)),
        ([event("external.completed", error=ERROR)], Answer(error=ERROR)),
        ([event("external.resolved", outcome="happened", result=5)], Answer(5)),
        ([event("external.failed", final=True, error=ERROR)], Answer(error=ERROR)),
        ([event("external.refused", error=ERROR)], Answer(error=ERROR)),
    ],
)
def test_an_answer_is_what_settled_the_call(events, expected):
    assert answers.recorded(events) == expected


@pytest.mark.parametrize(
    "events",
    [
        [],
        [event("external.requested")],
        [event("external.unknown")],
        [event("external.failed", final=False, error=ERROR)],
        [event("external.resolved", outcome="not_happened")],
        [event("external.reconciled", outcome="happened")],
        [event("approval.decided", status="approved")],
    ],
)
def test_anything_else_is_no_answer_yet(events):
    assert answers.recorded(events) is None


def test_a_settled_call_stays_settled_whatever_was_written_before():
    found = answers.recorded(
        [event("external.failed", final=False, error=ERROR), event("external.completed", result=1)]
    )
    assert found is not None
    assert found.value() == 1


def test_an_error_is_raised_as_it_was():
    with pytest.raises(Failure, match="refused"):
        Answer(error=ERROR).value()
    assert Answer(error=ERROR).parts() == {"error": ERROR}
    assert Answer(0).parts() == {"result": 0}
