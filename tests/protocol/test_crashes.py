"""A worker dies around any of its writes; somebody else finishes; nothing happens twice."""

import psycopg
import pytest

from durable import conf, effects, interrupt, journal, runs, sleep, task, workflow
from durable.models import Evidence, OutboxMessage
from tests.crashes import Crash, crash
from tests.factories import make_message
from tests.scenario import (
    answer,
    at_once,
    begin,
    can_no_longer_land,
    events,
    fresh,
    go,
    lapse,
    lease,
    output,
    payloads,
    record,
    start,
    take_over,
    types,
    wake,
)
from tests.shop import mail, pay, service, ship

pytestmark = pytest.mark.usefixtures("checked")

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done(checked):
    DONE.clear()


@task()
def think(text):
    DONE.append(text)
    return text


@task(atomic=True)
def store(order):
    make_message(aggregate_id=order)
    return order


@workflow(version="1")
def crash_everywhere(order):
    think("before")
    paid = pay(order, "10")
    store(order)
    agreed = interrupt("Ship it?")
    shipped = ship(order)
    sleep(0)
    return [paid["id"], agreed, shipped["id"], think("after")]


def to_the_end(run):
    """Somebody goes on with the run, whatever it needs, until it has ended."""
    for _ in range(20):
        run = fresh(run)
        if run.ended_at is not None:
            return run
        if run.waiting_for == "answer" and run.wake_at is None:
            answer(run, True)
            go(run)
        elif run.waiting_for == "reconcile":
            can_no_longer_land(run)
            runs_due(run)
        else:
            take_over(run)
    raise AssertionError(f"{run} does not end: {run.status} {types(run)}")


def runs_due(run):
    """The next question may be asked at once: a person asks for it."""
    effects.ask_outside(record(run, status="unknown").operation_id, actor="user:oscar")
    go(run)


def writes_of_an_untroubled_run():
    """How many writes the executor makes from start to end."""
    with crash(at="durable_finish") as death:
        run = start(crash_everywhere, "untroubled")
        go(run)
        answer(run, True)
        go(run)
    return len(death.seen)


def test_a_crash_around_any_write_changes_nothing_outside():
    """E02, K1 to K5: every write of the run, each before and after its commit."""
    writes = writes_of_an_untroubled_run()
    assert writes > 12
    for when in ("before", "after"):
        for nth in range(1, writes + 1):
            order = f"{when}-{nth}"
            run = start(crash_everywhere, order)
            with crash(when=when, nth=nth):
                go(run)
                answer(run, True)
                go(run)
            finished = to_the_end(run)
            agreed = output(finished)[1]
            assert agreed is True, order
            assert service.keys(order + ":") == [f"{order}:pay", f"{order}:ship"], order
            assert OutboxMessage.objects.filter(aggregate_id=order).count() == 1, order
            assert lease(run).owner is None, order


def test_a_crash_before_the_intent_sends_nothing_and_the_next_worker_sends_once():
    """E02 at K1."""
    run = start(crash_everywhere, "A-1")
    with crash(at="durable_effect_begin", when="before"):
        go(run)
    assert service.calls == []
    take_over(run)
    assert service.calls == ["A-1:pay"]


def test_a_crash_between_intent_and_call_becomes_unknown_and_is_sent_once_under_the_same_key():
    """E02 at K1b."""
    run = start(crash_everywhere, "A-1")
    with crash(at="durable_effect_begin", when="after"):
        go(run)
    assert record(run).status == "running"
    run = take_over(run)
    assert (record(run).status, run.waiting_for, service.calls) == ("unknown", "reconcile", [])
    can_no_longer_land(run)
    runs_due(run)
    assert service.calls == ["A-1:pay"]
    assert record(run, operation="pay").status == "succeeded"


def test_a_crash_between_call_and_result_is_looked_up_and_not_repeated():
    """E02 at K2."""
    run = start(crash_everywhere, "A-1")
    with crash(at="durable_effect_end", when="before"):
        go(run)
    assert service.keys() == ["A-1:pay"]
    run = take_over(run)
    assert (run.waiting_for, service.calls) == ("answer", ["A-1:pay"])
    assert payloads(run, "external.reconciled")[0]["outcome"] == "happened"
    assert payloads(run, "run.resumed")[0]["recovery"] == "business"


def test_a_crash_after_the_result_repeats_nothing():
    """E02 at K3 and K4."""
    run = start(crash_everywhere, "A-1")
    with crash(at="durable_effect_end", when="after"):
        go(run)
    run = take_over(run)
    assert (service.calls, service.asked) == (["A-1:pay"], [])
    assert payloads(run, "run.resumed")[0]["recovery"] == "process"


def test_a_dead_worker_is_named_by_the_one_that_takes_over():
    run = start(crash_everywhere, "A-1")
    with crash(at="task.completed", when="before"):
        go(run)
    dead = lease(run)
    take_over(run)
    lost = payloads(run, "lease.lost")[0]
    assert (lost["owner"], lost["worker"], lost["epoch"]) == (str(dead.owner), dead.worker, 1)
    assert [event.epoch for event in events(run, "lease.acquired")] == [1, 2]


def test_a_connection_lost_at_the_commit_is_read_again_and_not_resent(monkeypatch):
    """Invariant 1: an ambiguous commit counts as a lost lease; the worker claims its own again."""
    original = journal.Journal.call
    lost: list[str] = []

    def call(self, fence, function, params, *, events):
        result = original(self, fence, function, params, events=events)
        if "effect_end" in function and not lost:
            lost.append(function)
            self._recover()
            raise journal._translate(psycopg.OperationalError("cut"), fence)
        return result

    monkeypatch.setattr(journal.Journal, "call", call)
    run = begin(crash_everywhere, "A-1")
    assert lost
    assert (run.waiting_for, service.calls) == ("answer", ["A-1:pay"])
    assert lease(run).epoch == 2


def test_a_result_that_comes_after_the_lease_was_taken_is_evidence_and_no_outcome():
    """P14."""
    taken: list[str] = []

    @workflow(version="1")
    def outlived(order):
        return mail(order)

    run = start(outlived, "A-1")
    original = service.do

    def slow(key, what):
        if not taken:
            taken.append(key)
            at_once(lambda: take_over(run))  # somebody else, while the call is under way
        return original(key, what)

    service.do = slow  # type: ignore[method-assign]
    try:
        go(run)
    finally:
        del service.do
    run = fresh(run)
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")
    assert record(run).status == "unknown"
    evidence = Evidence.objects.get(run_id=run.id)
    assert (evidence.kind, evidence.epoch) == ("succeeded", 1)
    assert "r1" in evidence.payload


def test_a_task_whose_lease_was_taken_leaves_nothing_in_the_log():
    taken: list[str] = []

    @task()
    def outlived_task(order):
        if not taken:
            taken.append(order)
            at_once(lambda: take_over(run))
            return "first"
        return "second"

    @workflow(version="1")
    def outlived_by_a_task(order):
        return [outlived_task(order), think("next")]

    run = start(outlived_by_a_task, "A-1")
    go(run)
    assert output(fresh(run)) == ["second", "next"]
    assert DONE == ["next"]
    assert len(payloads(run, "task.completed")) == 2
    assert {event.epoch for event in events(run, "task.completed")} == {2}


def test_a_worker_that_dies_again_and_again_is_stopped_after_its_attempts():
    """E14: attempts are charged when claimed, since the dead report nothing."""

    @task()
    def kills(order):
        raise Crash

    @workflow(version="1")
    def killer(order):
        return kills(order)

    run = start(killer)
    deaths = 0
    for _ in range(12):
        lapse(run)
        try:
            go(run)
        except Crash:
            deaths += 1
    run = fresh(run)
    assert (run.status, run.code, deaths) == ("blocked", "WORKER_LOST", conf.max_attempts())
    assert payloads(run, "run.blocked")[0]["failure_class"] == "retryable"
    runs.cancel(run.id, actor="user:oscar", reason="it kills")
    assert go(run).status == "cancelled"


def test_progress_gives_a_run_its_attempts_back():
    """E14: deploys during a healthy run do not use them up."""
    run = start(crash_everywhere, "A-1")
    for _ in range(conf.max_attempts() - 1):
        lapse(run)
        with crash(at="task.completed", when="before"):
            go(run)
    assert fresh(run).attempts == conf.max_attempts() - 1
    take_over(run)
    answer(run, True)
    run = wake(run)
    assert (run.status, run.attempts) == ("succeeded", 1)


def test_a_lease_that_is_nearly_over_once_the_intent_is_stored_sends_nothing(monkeypatch):
    """Invariant 1: the commit took time; the call is left to whoever claims next."""
    original = journal.Journal.call
    slow: list[str] = []

    def call(self, fence, function, params, *, events):
        result = original(self, fence, function, params, events=events)
        if "effect_begin" in function and not slow:
            slow.append(function)
            fence._confirmed -= fence.ttl.total_seconds()
        return result

    monkeypatch.setattr(journal.Journal, "call", call)
    run = begin(crash_everywhere, "A-1")
    assert (slow != [], service.calls) == (True, [])
    run = take_over(run)
    assert (run.waiting_for, record(run).status) == ("reconcile", "unknown")
    assert (lease(run).epoch, service.calls) == (2, [])
