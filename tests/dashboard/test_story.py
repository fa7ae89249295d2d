import uuid
from datetime import UTC, datetime, timedelta

from dashboard import story
from durable.timeline import EventRow, Lane, Timeline

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
RUN = uuid.UUID(int=1)


def told(*events):
    """Tell events given as (seconds after noon, type, fields)."""
    rows = [
        EventRow(
            run_id=RUN,
            seq=seq,
            epoch=fields.get("epoch", 1),
            at=NOON + timedelta(seconds=seconds),
            type=type_,
            node=fields.get("node", ""),
            task_key=fields.get("key", ""),
            actor=fields.get("actor", ""),
            payload=fields.get("payload", {}),
            is_cut=False,
        )
        for seq, (seconds, type_, fields) in enumerate(events, start=1)
    ]
    return story.tell(Timeline(events=rows[::-1], lane=None, before=None, is_newest=True))


def entries(tale):
    return [entry for entry in tale.entries if isinstance(entry, story.Entry)]


def test_an_effect_and_its_approval_are_two_entries_in_two_lanes():
    found = entries(
        told(
            (0, "approval.requested", {"key": "3", "payload": {"title": "Charge 5"}}),
            (9, "approval.decided", {"key": "3", "payload": {"status": "approved"}}),
            (9, "external.requested", {"key": "3", "payload": {"operation": "charge"}}),
            (11, "external.completed", {"key": "3", "payload": {"name": "charge"}}),
        )
    )
    assert [(entry.lane, entry.title, entry.state.text) for entry in found] == [
        (Lane.EFFECTS, "charge", "Happened"),
        (Lane.PEOPLE, "Charge 5", "Approved"),
    ]
    assert found[0].took == "2 s"


def test_a_lease_lasts_as_long_as_anything_was_written_under_it():
    (_, lease) = entries(
        told(
            (0, "lease.acquired", {"payload": {"worker": "w1"}}),
            (5, "task.completed", {"key": "1", "payload": {"name": "validate"}}),
        )
    )
    assert (lease.title, lease.took) == ("Lease 1 · w1", "5 s")


def test_a_lost_lease_is_told_of_the_lease_that_was_lost():
    found = entries(
        told(
            (0, "lease.acquired", {"epoch": 1, "payload": {"worker": "w1"}}),
            (60, "lease.lost", {"epoch": 2, "payload": {"worker": "w1", "epoch": 1}}),
            (60, "lease.acquired", {"epoch": 2, "payload": {"worker": "w2"}}),
        )
    )
    assert [(entry.title, entry.state.text) for entry in found] == [
        ("Lease 2 · w2", "Taken by a worker"),
        ("Lease 1 · w1", "Worker lost it"),
    ]


def test_a_node_that_runs_again_is_a_new_entry():
    found = entries(
        told(
            (0, "node.started", {"node": "plan"}),
            (1, "node.completed", {"node": "plan"}),
            (2, "node.started", {"node": "plan"}),
        )
    )
    assert [len(entry.events) for entry in found] == [1, 2]


def test_a_long_silence_is_said_and_folded():
    tale = told(
        (0, "task.completed", {"key": "1"}),
        (1, "task.completed", {"key": "2"}),
        (2, "task.completed", {"key": "3"}),
        (187_202, "task.completed", {"key": "4"}),
    )
    gaps = [entry for entry in tale.entries if isinstance(entry, story.Gap)]
    assert [gap.text for gap in gaps] == ["2 d 4 h with nothing recorded"]
    assert len(tale.folds) == 1
    bars = {entry.key: entry.bar for entry in entries(tale)}
    assert bars["steps:2"].x > 300  # the work is not squeezed to nothing


def test_bars_stay_within_the_picture():
    tale = told(*[(n * n, "task.completed", {"key": str(n % 7)}) for n in range(100)])
    for entry in entries(tale):
        assert entry.bar.x >= 0
        assert entry.bar.x + entry.bar.width <= story.WIDTH


def test_an_empty_page_is_an_empty_story():
    tale = told()
    assert (tale.entries, tale.start) == ([], None)
