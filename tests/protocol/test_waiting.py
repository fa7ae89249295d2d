"""A parked run costs nothing, is not timed out as if it worked, and is never forgotten (E11)."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from approvals.models import Approval
from durable import (
    InterruptExpired,
    Retry,
    Retryable,
    inbox,
    interrupt,
    runs,
    sleep,
    sweeper,
    task,
    workflow,
)
from durable.errors import InterruptClosed, InterruptNotFound, InvalidValue
from durable.models import Interrupt, uuid7
from tests.approvals.miniature import say
from tests.crashes import crash
from tests.scenario import (
    answer,
    at_once,
    begin,
    events,
    fresh,
    go,
    lease,
    output,
    payloads,
    start,
    types,
)
from tests.shop import pay, service

pytestmark = pytest.mark.usefixtures("checked")

TRIES: list[str] = []
SWEEPER = uuid4()


@pytest.fixture(autouse=True)
def no_tries(checked):
    TRIES.clear()


@workflow(version="1")
def waits_asks(order):
    return interrupt("Go on?")


@workflow(version="1")
def waits_asks_for_an_hour(order):
    try:
        return interrupt("Go on?", timeout=3600)
    except InterruptExpired:
        return ["nobody", pay(order, "10")["id"]]


def sweep_finds(hints):
    """The runs that one sweep tells the workers about."""
    hints.clear()
    assert sweeper.sweep(SWEEPER) is not None
    return hints


def forget(monkeypatch):
    """Every nudge is lost."""
    monkeypatch.setattr(inbox, "poke", lambda *args, **options: None)


# Parked ------------------------------------------------------------------------------------------


def test_a_run_that_waits_holds_no_lease_and_is_not_timed_out(clock, hints):
    """E11: neither its task's limit nor a lease runs while a person thinks."""
    run = begin(waits_asks)
    clock.forward(30 * 86400)
    assert sweep_finds(hints) == []
    assert go(run).status == "waiting"
    assert (lease(run).owner, lease(run).epoch) == (None, 1)
    assert types(run)[-1] == "interrupt.waiting"
    answer(run, "at last")
    assert output(go(run)) == "at last"
    assert len(events(run, "lease.acquired")) == 2


def test_an_approval_awaited_for_a_month_runs_its_step_once(clock, large_payments_ask):
    """E11."""
    object.__setattr__(large_payments_ask, "decide_within", timedelta(days=60))

    @workflow(version="1")
    def waits_for_a_month(order):
        return pay(order, "6000")["id"]

    run = begin(waits_for_a_month, "A-1")
    clock.forward(30 * 86400)
    assert go(run).status == "waiting"
    say(Approval.objects.get(run=run), "approve")
    assert output(go(run)) == "r1"
    assert service.calls == ["A-1:pay"]


def test_a_sleeping_run_wakes_once_when_its_time_has_come(clock, hints):
    @workflow(version="1")
    def sleeps_twice(order):
        sleep(60)
        sleep(60)
        return "awake"

    run = begin(sleeps_twice)
    assert sweep_finds(hints) == []
    clock.forward(61)
    assert sweep_finds(hints) == [run.id]
    run = go(run)
    assert run.status == "waiting"
    clock.forward(61)
    assert output(go(run)) == "awake"
    assert types(run).count("timer.fired") == 2


def test_a_sleep_may_not_be_negative():
    @workflow(version="1")
    def sleeps_backwards(order):
        sleep(-1)

    assert begin(sleeps_backwards).status == "failed"


# Lost nudges -------------------------------------------------------------------------------------


def test_an_answer_whose_nudge_was_lost_is_found_by_the_sweep(monkeypatch, hints):
    """A09, E06."""
    run = begin(waits_asks)
    with monkeypatch.context() as lossy:
        forget(lossy)
        answer(run, "yes")
    assert fresh(run).wake_at is None
    assert sweep_finds(hints) == [run.id]
    assert output(go(run)) == "yes"


def test_a_cancel_whose_nudge_was_lost_is_found_by_the_sweep(monkeypatch, hints):
    run = begin(waits_asks)
    with monkeypatch.context() as lossy:
        forget(lossy)
        runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
    assert sweep_finds(hints) == [run.id]
    assert go(run).status == "cancelled"


def test_a_run_whose_first_hint_was_lost_is_found_by_the_sweep(clock, hints):
    run = start(waits_asks)
    clock.forward(5)
    assert sweep_finds(hints) == [run.id]


def test_a_dead_workers_run_is_found_by_the_sweep(clock, hints):
    run = start(waits_asks)
    with crash(at="node.started"):
        go(run)
    assert sweep_finds(hints) == []
    clock.forward(10)
    assert sweep_finds(hints) == [run.id]
    assert go(run).status == "waiting"


# Questions ---------------------------------------------------------------------------------------


def test_the_first_answer_stands():
    run = begin(waits_asks)
    question = Interrupt.objects.get(run=run)
    runs.answer(question.id, "first", actor="user:alice")
    with pytest.raises(InterruptClosed):
        runs.answer(question.id, "second", actor="user:bob")
    assert output(go(run)) == "first"


def test_of_many_answers_at_one_instant_one_is_kept():
    run = begin(waits_asks)
    question = Interrupt.objects.get(run=run)
    results = at_once(
        *[lambda n=n: runs.answer(question.id, n, actor=f"user:{n}") for n in range(10)]
    )
    assert sum(result is None for result in results) == 1
    assert all(result is None or isinstance(result, InterruptClosed) for result in results)
    question.refresh_from_db()
    assert question.answered_by == f"user:{output(go(run))}"


def test_a_question_that_does_not_exist_or_is_a_strangers_is_not_found():
    """S12."""
    run = begin(waits_asks)
    for stranger in ({"interrupt_id": uuid7()}, {"interrupt_id": _question(run), "tenant": "x"}):
        with pytest.raises(InterruptNotFound):
            runs.answer(value=1, actor="user:alice", **stranger)
    assert Interrupt.objects.get(run=run).status == "open"


def _question(run):
    return Interrupt.objects.get(run=run).id


@pytest.mark.parametrize("value", ["a\x00b", float("nan"), {1: 2}, "x" * 2_000_000])
def test_an_answer_that_cannot_be_stored_is_refused_and_the_question_stays_open(value):
    """S01, S02, S06."""
    run = begin(waits_asks)
    with pytest.raises(InvalidValue, match="answer"):
        answer(run, value)
    answer(run, "fine")
    assert output(go(run)) == "fine"


def test_a_question_nobody_answers_expires_and_the_body_goes_on(clock):
    run = begin(waits_asks_for_an_hour, "A-1")
    question = Interrupt.objects.get(run=run)
    clock.forward(3601)
    with pytest.raises(InterruptClosed):
        runs.answer(question.id, "late", actor="user:alice")
    assert output(go(run)) == ["nobody", "r1"]
    question.refresh_from_db()
    assert question.status == "expired"


def test_an_answer_that_came_in_time_is_kept_though_the_run_wakes_too_late(clock):
    run = begin(waits_asks_for_an_hour, "A-1")
    answer(run, "in time")
    clock.forward(3601)
    assert output(go(run)) == "in time"
    assert service.calls == []


# Trying again ------------------------------------------------------------------------------------


@task(retry=Retry(attempts=3, initial=60, jitter=0))
def waits_flaky(order):
    TRIES.append(order)
    if len(TRIES) < 3:
        raise Retryable("away")
    return len(TRIES)


@workflow(version="1")
def waits_for_a_flaky_task(order):
    return waits_flaky(order)


def test_a_long_back_off_is_stored_and_holds_nothing(clock):
    """E20."""
    run = begin(waits_for_a_flaky_task, "A-1")
    assert (run.status, run.waiting_for, lease(run).owner) == ("waiting", "retry", None)
    assert go(run).status == "waiting"
    assert TRIES == ["A-1"]
    clock.forward(61)
    run = go(run)
    assert (run.waiting_for, len(TRIES)) == ("retry", 2)
    clock.forward(121)
    assert output(go(run)) == 3
    assert [told["attempt"] for told in payloads(run, "task.retrying")] == [1, 2]


def test_a_task_that_fails_for_good_says_so_once_and_the_body_may_catch_it():
    calls = []

    @task(retry=Retry(attempts=2, initial=0))
    def never_works(order):
        calls.append(order)
        raise KeyError("missing")

    @workflow(version="1")
    def catches_a_failed_task(order):
        try:
            never_works(order)
        except KeyError as error:
            return [str(error), interrupt("Go on?")]

    run = begin(catches_a_failed_task, "A-1")
    answer(run, 1)
    assert output(go(run)) == ["'missing'", 1]
    assert calls == ["A-1", "A-1"]
    assert types(run).count("task.failed") == 1


def test_a_service_that_asks_for_time_is_given_it(clock):
    """E20: Retry-After 60 where the own delay is a second."""
    service.then("busy")

    @workflow(version="1")
    def waits_for_a_busy_service(order):
        return pay(order, "10")["id"]

    run = begin(waits_for_a_busy_service, "A-1")
    assert run.waiting_for == "retry"
    clock.forward(50)
    assert go(run).status == "waiting"
    clock.forward(12)
    assert output(go(run)) == "r1"
    assert service.calls == ["A-1:pay"] * 2


def test_a_run_with_a_later_start_is_left_alone_until_then(clock):
    run = start(waits_asks, run_at=datetime.now(UTC) + timedelta(hours=1))
    assert go(run).status == "pending"
    clock.forward(3601)
    assert go(run).status == "waiting"
