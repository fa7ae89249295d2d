"""A run's log as its executor reads it."""

from datetime import UTC, datetime

from durable.history import History
from durable.statuses import EventType

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)


def row(seq, type, path="", payload="{}"):
    return {
        "seq": seq,
        "type": type,
        "task_key": path,
        "actor": "",
        "at": AT,
        "payload": payload,
    }


def history(*rows):
    made = History()
    made.add(rows)
    return made


def test_events_are_found_by_the_path_of_their_call():
    log = history(
        row(1, "run.created"),
        row(2, "task.completed", "1", '{"name":"a"}'),
        row(3, "task.retrying", "2.1"),
        row(4, "task.completed", "2.1"),
    )
    assert [event.seq for event in log.of("2.1")] == [3, 4]
    assert log.of("1")[0].payload == {"name": "a"}
    assert log.of("2") == []
    assert list(log.calls) == ["1", "2.1"]
    assert [event.seq for event in log.in_order] == [2, 3, 4]


def test_looking_for_a_call_that_was_never_made_does_not_make_it():
    log = history()
    assert log.of("1") == []
    assert list(log.calls) == []


def test_the_latest_word_about_the_whole_run_is_found():
    log = history(
        row(1, "resume.requested", "", '{"reason":"one"}'),
        row(2, "cancel.requested", "", '{"reason":"two"}'),
        row(3, "resume.requested", "", '{"reason":"three"}'),
    )
    newest = log.latest(EventType.RESUME_REQUESTED)
    assert newest is not None
    assert newest.payload == {"reason": "three"}
    either = log.latest(EventType.CANCEL_REQUESTED, EventType.GIVE_UP_REQUESTED)
    assert either is not None
    assert either.seq == 2
    assert log.latest(EventType.COMPENSATION_STARTED) is None


def test_what_is_written_later_is_added_behind():
    log = history(row(1, "external.unknown", "1"))
    log.add([row(2, "external.reconciled", "1")])
    assert [event.type for event in log.of("1")] == ["external.unknown", "external.reconciled"]
