"""Commands about runs: each joins the caller's transaction, and says who asked."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from durable import interrupt, run_info, runs, workflow
from durable.models import Lease, Run, uuid7
from tests.scenario import at_once, begin, events, go, output, payloads, start, types

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def runs_asks(order):
    return interrupt("Well?")


def test_a_started_run_is_pending_due_and_told():
    run = start(runs_asks, {"b": 1, "a": 2}, goal="Ask", priority=3, labels={"team": "books"})
    assert (run.status, run.version, run.input) == ("pending", "1", '{"a":2,"b":1}')
    assert (run.priority, run.labels, run.goal) == (3, {"team": "books"}, "Ask")
    assert run.wake_at is not None
    assert Lease.objects.get(run=run).epoch == 0
    told = events(run)[0]
    assert (told.type, told.actor, told.epoch) == ("run.created", "user:oscar", 0)
    assert payloads(run, "run.created")[0] == {
        "goal": "Ask",
        "input_digest": run.input_digest,
        "key": None,
        "version": "1",
        "workflow": "runs_asks",
    }


def test_a_run_may_be_started_for_later():
    later = datetime.now(UTC) + timedelta(hours=1)
    run = start(runs_asks, run_at=later)
    assert run.wake_at == later
    assert go(run).status == "pending"


def test_thirty_starts_with_one_key_at_once_make_one_run():
    """D06."""
    begin_it = partial(runs.start, "runs_asks", {"a": 1}, actor="user:oscar", key="k1")
    results = at_once(*[begin_it] * 30)
    assert {result.run.id for result in results} == {Run.objects.get().id}
    assert sum(result.created for result in results) == 1
    assert types(Run.objects.get()) == ["run.created"]


def test_a_run_keeps_the_version_it_began_with():
    run = start(runs_asks)
    workflow(name="runs_asks", version="2")(lambda order: "two")
    assert go(run).waiting_for == "answer"
    newer = begin("runs_asks")
    assert (newer.version, output(newer)) == ("2", "two")
    assert start("runs_asks", version="1").version == "1"


def test_a_body_may_know_its_own_run():
    @workflow(version="1")
    def runs_knows(order):
        info = run_info()
        return [str(info.id), info.tenant, info.goal, info.generation, info.started_by]

    run = begin(runs_knows, tenant="acme", goal="Know", generation=2)
    assert output(run) == [str(run.id), "acme", "Know", 2, "user:oscar"]


def test_a_command_says_who_asked_in_the_log():
    run = begin(runs_asks)
    runs.cancel(run.id, actor="token:nightly", reason="over")
    go(run)
    told = events(run, "cancel.requested")[0]
    assert (told.actor, told.payload) == ("token:nightly", '{"reason":"over"}')


def test_ids_grow_with_time():
    """New rows go to the end of an index."""
    made = [uuid7() for _ in range(100)]
    assert all(one.version == 7 and one.variant == "specified in RFC 4122" for one in made)
    first, later = made[0], start(runs_asks).id
    assert first.int >> 80 <= later.int >> 80


def test_priorities_and_labels_of_a_run_are_its_own():
    one, two = start(runs_asks, labels={"a": "1"}), start(runs_asks)
    assert (one.labels, two.labels) == ({"a": "1"}, {})
    assert Run.objects.count() == 2
