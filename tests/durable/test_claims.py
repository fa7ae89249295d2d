"""Taking a run: once, by one executor, and only when it is due or its owner is dead."""

import json
from functools import partial
from uuid import uuid4

import pytest

from durable import claims, engine, interrupt, task, workflow
from durable.errors import LeaseLost
from durable.models import Run
from tests.crashes import crash
from tests.scenario import (
    at_once,
    begin,
    events,
    execute,
    fresh,
    go,
    lapse,
    lease,
    output,
    start,
    take_over,
    types,
)
from tests.shop import service, ship

pytestmark = pytest.mark.usefixtures("checked")


@task()
def claims_step(order):
    return order


@workflow(version="1")
def claims_ships(order):
    claims_step(order)
    return ship(order)["id"]


@workflow(version="1")
def claims_asks(order):
    return interrupt("Go on?")


def test_twenty_wake_ups_for_one_run_make_one_claim():
    """L06: one attempt; the others return at once and add no events."""
    run = start(claims_ships, "A-1")
    results = at_once(*[partial(engine.advance, run.id)] * 20)
    assert sorted(results) == [False] * 19 + [True]
    assert output(fresh(run)) == "r1"
    assert (len(events(run, "lease.acquired")), fresh(run).attempts) == (1, 1)


def test_wake_ups_while_it_runs_and_after_it_ended_change_nothing():
    """L06."""
    run = start(claims_ships, "A-1")
    claimed = claims.claim(run.id)
    assert claimed is not None
    before = types(run)
    assert at_once(*[partial(engine.advance, run.id)] * 8) == [False] * 8
    assert types(run) == before
    lapse(run)
    run = go(run)
    ended = Run.objects.filter(id=run.id).values().get()
    assert at_once(*[partial(engine.advance, run.id)] * 8) == [False] * 8
    assert Run.objects.filter(id=run.id).values().get() == ended


def test_of_eight_sweepers_with_one_old_list_one_takes_over():
    """L04: the losers do nothing at all; the epoch rises by one."""
    run = start(claims_ships, "A-1")
    with crash(at="task.completed"):
        go(run)
    lapse(run)
    results = at_once(*[partial(engine.advance, run.id)] * 8)
    assert sorted(results) == [False] * 7 + [True]
    assert (lease(run).epoch, len(events(run, "lease.lost"))) == (2, 1)
    assert service.calls == ["A-1:ship"]


def test_a_second_sweeper_that_goes_on_after_the_first_has_finished_does_nothing():
    """L04."""
    run = start(claims_ships, "A-1")
    with crash(at="task.completed"):
        go(run)
    assert take_over(run).status == "succeeded"
    before = types(run)
    assert engine.advance(run.id) is False
    assert (types(run), lease(run).epoch) == (before, 2)


def test_a_live_lease_is_not_taken():
    run = start(claims_ships)
    first = claims.claim(run.id)
    assert first is not None
    assert claims.claim(run.id) is None
    assert lease(run).owner == first.fence.owner


def test_an_executor_that_lost_its_connection_takes_its_own_lease_back_at_once():
    """Invariant 1."""
    run = start(claims_ships)
    first = claims.claim(run.id)
    assert first is not None
    assert claims.claim(run.id, previous=uuid4()) is None
    again = claims.reclaim(run.id, first.fence.owner, patience=1.0)
    assert again is not None
    assert (again.fence.epoch, again.fence.owner != first.fence.owner) == (2, True)
    with pytest.raises(LeaseLost):
        engine.Execution(first).drive()


def test_a_waiting_run_is_taken_only_when_it_is_due():
    run = begin(claims_asks)
    assert claims.claim(run.id) is None
    execute("UPDATE durable_run SET wake_at = clock_timestamp() + interval '1 h'")
    assert claims.claim(run.id) is None
    execute("UPDATE durable_run SET wake_at = clock_timestamp()")
    assert claims.claim(run.id) is not None


def test_a_run_that_does_not_exist_is_nobodys():
    assert claims.claim(uuid4()) is None


def test_every_claim_is_of_a_fresh_owner_and_signs_its_name():
    run = start(claims_ships)
    owners = set()
    for _ in range(3):
        lapse(run)
        claimed = claims.claim(run.id)
        assert claimed is not None
        owners.add(claimed.fence.owner)
    assert len(owners) == 3
    assert lease(run).worker == claims.worker_name()
    assert [event.epoch for event in events(run, "lease.acquired")] == [1, 2, 3]


def test_a_claim_says_how_the_run_comes_back():
    """process: a dead worker; wait: what it waited for has come."""
    run = start(claims_asks)
    with crash(at="node.started"):
        go(run)
    take_over(run)
    execute("UPDATE durable_run SET wake_at = clock_timestamp()")
    go(run)
    resumed = [json.loads(event.payload) for event in events(run, "run.resumed")]
    assert resumed == [
        {"after": "", "recovery": "process"},
        {"after": "answer", "recovery": "wait"},
    ]


def test_a_claim_ignores_a_column_that_a_newer_release_added():
    """P16: a rolling deploy migrates first; old workers go on."""
    run = start("fulfil", {"order_id": "A-1"})
    execute("ALTER TABLE durable_run ADD COLUMN later text")
    try:
        assert claims.claim(run.id) is not None
    finally:
        execute("ALTER TABLE durable_run DROP COLUMN later")
