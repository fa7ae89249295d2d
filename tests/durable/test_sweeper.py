"""What lost messages and dead workers left behind is found again until it is done."""

from datetime import timedelta
from uuid import uuid4

import pytest

from durable import conf, effects, inbox, interrupt, outbox, sweeper, workflow
from durable.models import Sweeper
from tests.crashes import crash
from tests.scenario import at_once, begin, execute, fresh, go, lapse, lease, record, start, types
from tests.shop import pay_blind, service

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def sweeper_asks(order):
    return interrupt("Go on?")


@workflow(version="1")
def sweeper_pays(order):
    return pay_blind(order)["id"]


def overdue(run):
    execute(
        "UPDATE durable_run SET wake_at = clock_timestamp() - interval '1 min' WHERE id = %s",
        run.id,
    )


def swept():
    found = sweeper.sweep(uuid4())
    Sweeper.objects.update(owner=None)
    assert found is not None
    return {name: count for name, count in found.items() if count}


def test_nothing_to_find_is_nothing_found(hints):
    begin(sweeper_asks)
    hints.clear()
    assert (swept(), hints) == ({}, [])


def test_a_run_of_a_dead_worker_is_found_until_somebody_takes_it(hints):
    """E04: repeated, not one-shot."""
    run = start(sweeper_asks)
    with crash(at="node.started"):
        go(run)
    lapse(run)
    hints.clear()
    for _ in range(3):
        assert swept() == {"leases expired": 1}
    assert hints == [run.id] * 3
    go(run)
    assert swept() == {}


def test_fifty_runs_of_a_dead_worker_are_all_found(hints):
    """E04."""
    started = [start(sweeper_asks) for _ in range(50)]
    for run in started:
        with crash(at="node.started"):
            go(run)
    execute("UPDATE durable_lease SET expires_at = clock_timestamp()")
    assert swept() == {"leases expired": 50}
    assert set(hints) == {run.id for run in started}


def test_a_due_run_is_found_the_most_important_first(hints):
    runs = [start(sweeper_asks, priority=n) for n in (0, 5, 1)]
    for run in runs:
        overdue(run)
    assert swept() == {"runs due": 3}
    assert hints[-3:] == [runs[1].id, runs[2].id, runs[0].id]


def test_a_run_that_waits_for_a_settled_key_is_found(monkeypatch, hints):
    """P05: the nudge was lost."""
    service.then("silent")
    holder = begin(sweeper_pays, "A-1")
    run = begin(sweeper_pays, "A-1")
    assert swept() == {}
    with monkeypatch.context() as lossy:
        lossy.setattr(inbox, "poke", lambda *args, **options: None)
        effects.resolve_happened(
            record(holder).operation_id, resource_id="r1", actor="user:oscar", reason="seen"
        )
    assert swept() == {"received": 1, "records settled": 1}
    assert {fresh(run).wake_at is None, fresh(holder).wake_at is None} == {False}
    assert go(run).status == "succeeded"


def test_only_the_elected_one_looks():
    first, second = uuid4(), uuid4()
    assert sweeper.sweep(first) is not None
    assert sweeper.sweep(second) is None
    assert sweeper.sweep(first) is not None


def test_another_worker_is_elected_when_the_first_is_silent(clock):
    assert sweeper.sweep(uuid4()) is not None
    clock.forward(conf.sweep_interval() * 2 + 0.1)
    assert sweeper.sweep(uuid4()) is not None


def test_of_eight_at_once_one_is_elected():
    results = at_once(*[lambda: sweeper.sweep(uuid4())] * 8)
    assert sum(result is not None for result in results) == 1
    assert not [result for result in results if isinstance(result, BaseException)]


def test_an_election_is_recorded_with_what_was_found():
    start(sweeper_asks)
    owner = uuid4()
    sweeper.sweep(owner)
    row = Sweeper.objects.get()
    assert (row.owner, row.swept_at is not None) == (owner, True)
    assert "runs due" in row.found


def test_one_sweep_that_fails_hides_no_other(monkeypatch):
    def broken():
        raise ValueError("a bad row")

    monkeypatch.setattr(outbox, "relay", broken)
    monkeypatch.setitem(sweeper._sweeps, "mine", lambda: 7)
    found = sweeper.sweep(uuid4())
    assert found is not None
    assert (found["outbox sent"], found["mine"]) == (-1, 7)


def test_a_sweep_marks_nothing_and_changes_no_log(clock):
    """P10: only a claim with a higher epoch makes an action unknown."""
    run = start(sweeper_pays, "A-1")
    with crash(at="durable_effect_begin"):
        go(run)
    clock.forward(timedelta(hours=1).total_seconds())
    before = (types(run), lease(run).epoch)
    swept()
    assert (types(run), lease(run).epoch) == before
