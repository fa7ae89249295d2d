"""Only the database's clock decides who owns a run, what is due and what is too late (L03)."""

import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import time_machine

from approvals.errors import TooLate
from approvals.models import Approval
from durable import conf, interrupt, now, runs, sleep, sweeper, task, workflow
from durable.errors import LeaseLost
from durable.leases import Fence
from durable.models import Interrupt
from tests.approvals.miniature import say
from tests.crashes import crash
from tests.scenario import (
    begin,
    events,
    execute,
    go,
    lease,
    output,
    start,
    take_over,
    types,
    value_of,
)
from tests.shop import pay, service

pytestmark = pytest.mark.usefixtures("checked")

SHIFTS = [timedelta(minutes=10), timedelta(minutes=-10), timedelta(hours=-1), timedelta(days=400)]


@task()
def clock_step(order):
    return order


@workflow(version="1")
def clock_pays(order):
    clock_step(order)
    return [pay(order, "10")["id"], now().isoformat()]


def shifted(by):
    return time_machine.travel(datetime.now(UTC) + by, tick=True)


@pytest.mark.parametrize("by", SHIFTS)
def test_a_worker_whose_clock_is_wrong_works_and_records_the_databases_time(by):
    """L03."""
    run = start(clock_pays, "A-1")
    with shifted(by):
        run = go(run)
    paid, recorded = output(run)
    assert paid == "r1"
    drift = value_of("SELECT clock_timestamp()") - datetime.fromisoformat(recorded)
    assert abs(drift) < timedelta(seconds=30)
    assert all(abs(event.at - run.created_at) < timedelta(seconds=30) for event in events(run))


@pytest.mark.parametrize("by", SHIFTS)
def test_a_live_lease_is_not_taken_and_a_dead_one_is_whatever_the_workers_clock_says(by):
    """L03."""
    run = start(clock_pays, "A-1")
    with crash(at="task.completed"):
        go(run)
    with shifted(by):
        sweeper.sweep(uuid4())
        assert go(run).status == "running"
        assert lease(run).epoch == 1
        run = take_over(run)
    assert run.status == "succeeded"
    assert service.calls == ["A-1:pay"]


def test_a_lease_ends_a_ttl_after_its_renewal_by_the_databases_clock():
    """L03: expires_at - database now = TTL."""
    ends: list[timedelta] = []

    @task()
    def looks(order):
        left = value_of(
            "SELECT expires_at - clock_timestamp() FROM durable_lease WHERE run_id = %s", run.id
        )
        ends.append(left)

    @workflow(version="1")
    def looks_twice(order):
        looks(order)
        looks(order)

    run = start(looks_twice)
    with shifted(timedelta(minutes=10)):
        go(run)
    for left in ends:
        assert conf.lease_ttl() - timedelta(seconds=1) < left <= conf.lease_ttl()
    assert len(ends) == 2


def test_a_clock_that_jumps_back_in_the_middle_of_a_run_changes_nothing():
    """L03."""
    traveller = shifted(timedelta(0))

    @task()
    def jumps(order):
        moved = traveller.start()
        moved.shift(timedelta(hours=-1))

    @workflow(version="1")
    def jumps_back(order):
        jumps(order)
        first = now()
        clock_step(order)
        return first <= now()

    try:
        assert output(begin(jumps_back)) is True
    finally:
        traveller.stop()


def test_a_timer_fires_by_the_databases_clock_alone(clock):
    """L03, B01: nothing is slept and no message carries the time."""

    @workflow(version="1")
    def sleeps_an_hour(order):
        sleep(3600)
        return "awake"

    run = begin(sleeps_an_hour)
    assert (run.status, run.waiting_for) == ("waiting", "timer")
    with shifted(timedelta(hours=5)):
        assert go(run).status == "waiting"
    clock.forward(3601)
    with shifted(timedelta(hours=-5)):
        assert output(go(run)) == "awake"
    assert types(run).count("timer.fired") == 1


def test_a_question_is_too_late_by_the_databases_clock_alone(clock):
    """L03."""

    @workflow(version="1")
    def asks_for_an_hour(order):
        return interrupt("Go on?", timeout=3600)

    run = begin(asks_for_an_hour)
    question = Interrupt.objects.get(run=run)
    with shifted(timedelta(hours=5)):
        assert go(run).status == "waiting"
        runs.answer(question.id, "in time", actor="user:alice")
        assert output(go(run)) == "in time"


def test_an_approval_is_too_late_by_the_databases_clock_alone(clock, large_payments_ask):
    """L03."""

    @workflow(version="1")
    def large_by_the_clock(order):
        return pay(order, "6000")["id"]

    late = begin(large_by_the_clock, "A-1")
    early = begin(large_by_the_clock, "A-2")
    with shifted(timedelta(hours=5)):
        say(Approval.objects.get(run=early), "approve")
        assert output(go(early)) == "r1"
    clock.forward(3601)
    with shifted(timedelta(hours=-5)), pytest.raises(TooLate):
        say(Approval.objects.get(run=late), "approve")


def test_a_worker_stops_by_its_own_monotonic_clock_before_the_database_would():
    """Invariant 1, P11: TTL minus margin after it last heard of a renewal, error or not."""
    fence = Fence(
        run_id=uuid4(),
        owner=uuid4(),
        epoch=1,
        last_seq=1,
        phase="forward",
        cancel_requested=False,
        ttl=timedelta(seconds=10),
        margin=3.0,
        sent=time.monotonic() - 6.9,
    )
    fence.check()
    fence.confirm(sent=time.monotonic() - 7.1, cancel_requested=False)  # older news change nothing
    fence.check()
    fence._confirmed = time.monotonic() - 7.1
    with pytest.raises(LeaseLost):
        fence.check()
    fence.confirm(sent=time.monotonic(), cancel_requested=False)
    with pytest.raises(LeaseLost):  # once lost, lost: somebody may have taken it
        fence.check()


def test_a_lease_that_is_over_by_the_database_is_over_though_its_worker_thinks_otherwise():
    """L03: the write is refused, the worker's own clock notwithstanding."""

    @task()
    def outstays(order):
        if not seen:
            seen.append(order)
            execute(
                "UPDATE durable_lease SET expires_at = clock_timestamp() WHERE run_id = %s", run.id
            )

    seen: list[str] = []

    @workflow(version="1")
    def outstays_its_lease(order):
        outstays(order)
        return pay(order, "10")["id"]

    run = start(outstays_its_lease, "A-1")
    run = go(run)
    # Its own lease, taken back under a higher number: what the first claim did counts for nothing.
    assert types(run).count("lease.lost") == 1
    (completed,) = events(run, "task.completed")
    assert (completed.epoch, output(run), len(service.calls)) == (2, "r1", 1)
