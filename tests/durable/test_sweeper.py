"""What lost messages and dead workers left behind is found again until it is done."""

from datetime import timedelta
from uuid import uuid4

import pytest

from durable import (
    conf,
    effects,
    gather,
    inbox,
    interrupt,
    outbox,
    registry,
    signals,
    sweeper,
    workflow,
)
from durable.models import Sweeper
from tests.crashes import crash
from tests.scenario import (
    at_once,
    begin,
    execute,
    fresh,
    go,
    lapse,
    lease,
    record,
    start,
    types,
    value_of,
)
from tests.shop import pay_blind, service

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def sweeper_asks(order):
    return interrupt("Go on?")


@workflow(version="1")
def sweeper_pays(order):
    return pay_blind(order)["id"]


@workflow(version="1")
def sweeper_asks_and_pays(order):
    gather(lambda: interrupt("Go on?", timeout=86400), lambda: pay_blind(order))


@workflow(version="1")
def sweeper_gone(order):
    return interrupt("Go on?")


@pytest.fixture
def forgotten(monkeypatch):
    """Ten runs, overdue for long, of a workflow whose code is nowhere any more; a sweep takes 3."""
    runs = [start(sweeper_gone) for _ in range(10)]
    execute("UPDATE durable_run SET wake_at = wake_at - interval '1 h'")
    left = {k: v for k, v in registry._workflows.items() if v.name != "sweeper_gone"}
    monkeypatch.setattr(registry, "_workflows", left)
    monkeypatch.setattr(sweeper, "LIMIT", 3)
    monkeypatch.setattr(sweeper, "OTHERS", 3)
    return runs


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


def test_due_runs_that_nobody_takes_stand_before_no_other(forgotten, hints):
    """E04: their code is gone, and they are older than every run that could go on."""
    run = start(sweeper_asks)
    overdue(run)
    assert swept() == {"runs due": 1, "runs of other workers": 3}
    assert run.id in hints


def test_expired_leases_that_nobody_takes_stand_before_no_other(forgotten, hints):
    """E04."""
    execute(
        "UPDATE durable_lease SET owner = gen_random_uuid(),"
        " expires_at = clock_timestamp() - interval '1 h'"
    )
    run = start(sweeper_asks)
    with crash(at="node.started"):
        go(run)
    lapse(run)
    found = swept()
    execute("UPDATE durable_lease SET owner = NULL")
    assert found == {"leases expired": 1, "runs of other workers": 3}
    assert run.id in hints


def test_runs_that_only_another_worker_can_take_have_their_turn(forgotten, hints):
    """E04: in a rolling deploy, the elected worker may be an old one."""
    hints.clear()
    for _ in range(100):
        swept()
    assert set(hints) == {run.id for run in forgotten}


def test_a_run_that_waits_for_a_settled_key_and_a_timer_is_found(monkeypatch):
    """P05: tomorrow's timer is no reason to wait until tomorrow."""
    service.then("silent")
    holder = begin(sweeper_pays, "A-1")
    run = begin(sweeper_asks_and_pays, "A-1")
    timer = run.wake_at
    assert (run.waiting_on, swept()) == (record(holder).operation_id, {})
    with monkeypatch.context() as lossy:
        lossy.setattr(inbox, "poke", lambda *args, **options: None)
        effects.resolve_happened(
            record(holder).operation_id, resource_id="r1", actor="user:oscar", reason="seen"
        )
    assert fresh(run).wake_at == timer
    assert swept() == {"received": 1, "records settled": 1}
    assert value_of("SELECT wake_at <= clock_timestamp() FROM durable_run WHERE id = %s", run.id)
    assert go(run).waiting_on is None
    assert "records settled" not in swept()


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

    monkeypatch.setattr(sweeper, "_sweeps", {"broken": broken, "mine": lambda: 7})
    found = sweeper.sweep(uuid4())
    assert found is not None
    assert (found["broken"], found["mine"]) == (-1, 7)


def test_a_sweep_sends_no_message_itself_and_tells_the_relay_of_those_that_are_due(monkeypatch):
    """L10: a consumer that hangs would hold up every run."""
    sent: list[str] = []
    told: list[str] = []
    monkeypatch.setattr(outbox, "_consumers", {"mail": [lambda message: sent.append("a message")]})
    for _ in range(2):
        outbox.put("mail", aggregate_id="A-1", payload={})

    def listen(sender, **kwargs):
        told.append("messages")

    signals.message_stored.connect(listen, dispatch_uid="tests.sweeper")
    try:
        assert swept() == {"messages due": 2}
        assert (told, sent) == (["messages"], [])
        outbox.relay()
        assert swept() == {}
    finally:
        signals.message_stored.disconnect(dispatch_uid="tests.sweeper")
    assert told == ["messages"]


def test_a_sweep_marks_nothing_and_changes_no_log(clock):
    """P10: only a claim with a higher epoch makes an action unknown."""
    run = start(sweeper_pays, "A-1")
    with crash(at="durable_effect_begin"):
        go(run)
    clock.forward(timedelta(hours=1).total_seconds())
    before = (types(run), lease(run).epoch)
    swept()
    assert (types(run), lease(run).epoch) == before
