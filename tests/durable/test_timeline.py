import json

import pytest

from durable import timeline
from durable.statuses import EventType
from durable.timeline import Lane
from tests import factories


@pytest.mark.parametrize("type_", EventType)
def test_every_event_belongs_to_a_lane(type_):
    assert timeline.lane_of(type_) in Lane


@pytest.mark.django_db
def test_a_page_is_one_statement_and_says_where_to_go_on(django_assert_num_queries):
    run = factories.make_run("running")
    for _ in range(5):
        factories.make_event(run, "business")
    with django_assert_num_queries(1):
        newest = timeline.page(run.id, size=3)
    assert [event.seq for event in newest.events] == [5, 4, 3]
    oldest = timeline.page(run.id, before=newest.before, size=3)
    assert ([event.seq for event in oldest.events], oldest.before) == ([2, 1], None)


@pytest.mark.django_db
def test_a_lane_holds_only_its_events():
    run = factories.make_run("running")
    factories.make_events(run, "lease.acquired", "task.completed", "external.requested")
    found = timeline.page(run.id, lane=Lane.EFFECTS)
    assert [event.type for event in found.events] == ["external.requested"]


@pytest.mark.django_db
def test_a_long_payload_is_cut_by_the_database_and_stays_an_object():
    """D04"""
    run = factories.make_run("running")
    payload = {"name": "big", "result": "y" * 200_000, "args": list(range(50_000)), "n": 1.5}
    factories.make_event(run, "task.completed", payload=payload)
    (event,) = timeline.page(run.id).events
    assert event.is_cut
    assert (event.text("name"), event.payload["n"]) == ("big", 1.5)
    assert len(json.dumps(event.payload)) < 2_000


@pytest.mark.django_db
@pytest.mark.parametrize("payload", ["[1,2]", '"text"', "{", "[" + "1," * 4000 + "1]"])
def test_a_payload_that_is_no_object_is_shown_all_the_same(payload):
    run = factories.make_run("running")
    factories.make_event(run, "business", payload=payload)
    (event,) = timeline.page(run.id).events
    assert isinstance(event.payload, dict)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("type_", "payload", "said"),
    [
        (
            "task.failed",
            {"error": {"kind": "shop.stock.Busy", "message": "locked"}},
            "Busy: locked",
        ),
        ("run.blocked", {"code": "WORKER_LOST", "reason": "3 claims"}, "WORKER_LOST: 3 claims"),
        ("external.failed", {"error": "plain text"}, "plain text"),
        ("approval.decided", {"reason": "duplicate"}, ""),
        ("task.failed", {}, ""),
    ],
)
def test_the_error_of_an_event_is_one_line(type_, payload, said):
    run = factories.make_run("running")
    factories.make_event(run, type_, payload=payload)
    (event,) = timeline.page(run.id).events
    assert timeline.error_text(event) == said
