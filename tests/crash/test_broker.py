"""The broker redelivers, blinks, forgets and refuses; the runs go on, each step once."""

from typing import Any

import pytest

from approvals.models import Approval
from config.celery import app
from durable.models import Run
from durable.tasks import advance
from tests.processes import (
    AWAY,
    SWEEP,
    TTL,
    broker,
    empty_broker,
    happened,
    settle,
    stays,
    wait_until,
)
from tests.scenarios.looking import applied, approve, lease, now, sends, start, types

pytestmark = [
    pytest.mark.crash,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
]

# Seconds after the broker's return within which every run must be on its way again: Celery's
# consumer tries every two, four, six ... seconds, and the next sweep announces what is due.
BACK = 20


def queued():
    """Messages that wait for a worker, and messages that a worker has not acknowledged."""
    with broker() as client:
        return client.llen("celery"), client.hlen("unacked")


def redeliver():
    """What the broker's client does once a message is not acknowledged for too long."""
    with app.connection_for_read(transport_options={"visibility_timeout": 0}) as link:
        channel: Any = link.default_channel
        channel.qos.restore_visible(interval=1)


def test_a_step_longer_than_the_visibility_timeout_is_done_once(workers, sandbox, check):
    """B01: the message of a step under way is delivered again, and ends at once."""
    run = start("works", "P-1", seconds=3)
    wait_until(lambda: workers.ground.noted("P-1.work"), 10, lambda: types(run))
    wait_until(lambda: queued() == (0, 1), 5, queued)
    redeliver()
    # Every message that a worker takes is written to its log.
    wait_until(lambda: sum(w.log().count(" received") for w in workers) == 2, 5, queued)
    wait_until(lambda: queued() == (0, 0), 2, queued)
    assert now(run).status == "running"
    settle([run.id])
    assert (now(run).status, lease(run).epoch) == ("succeeded", 1)
    assert len(workers.ground.noted("P-1.work")) == 1
    assert applied(sandbox, run) == [True]
    wait_until(lambda: queued() == (0, 0), 5, queued)
    check()


def test_a_message_whose_acknowledgement_was_lost_finds_nothing_to_do(workers, sandbox, check):
    """B01: killed after the end of the run, before the acknowledgement."""
    killed = workers.crash_at("K5", "P-1:ship")
    run = start("works", "P-1", seconds=0)
    happened(killed)
    head = lease(run).last_seq
    redeliver()
    wait_until(lambda: queued() == (0, 0), 15, queued)
    assert (now(run).status, lease(run).epoch, lease(run).last_seq) == ("succeeded", 1, head)
    assert applied(sandbox, run) == [True]
    check()


def test_a_timer_waits_in_the_database_and_not_in_the_broker(workers, sandbox, check):
    """B01: no long-delayed message exists, and the timer fires once."""
    run = start("sleeps", "P-1", seconds=2)
    wait_until(lambda: now(run).waiting_for == "timer", 10, lambda: types(run))
    wait_until(lambda: queued() == (0, 0), 5, queued)
    advance.delay(str(run.id))  # too early: not due
    wait_until(lambda: queued() == (0, 0), 5, queued)
    assert lease(run).epoch == 1
    settle([run.id])
    assert types(run).count("timer.fired") == 1
    assert applied(sandbox, run) == [True]
    check()


def test_three_quick_restarts_under_load_leave_no_worker_deaf(
    workers, sandbox, check, valkey_server
):
    """B02: a worker that looks alive and takes nothing would be seen here."""
    started = [start("three", f"P-{number}") for number in range(10)]
    for _ in range(3):
        valkey_server.restart()
        started += [start("three", f"P-{len(started) + number}") for number in range(4)]
    settle([run.id for run in started], BACK + TTL)
    assert {now(run).status for run in started} == {"succeeded"}
    for run in started:
        assert applied(sandbox, run) == [True, True, True]
    # Both of them work: each gets messages that only it can take.
    for worker in workers:
        worker.forget_log()
    for number in range(20):
        started.append(start("counts", f"Q-{number}", steps=2))
    settle([run.id for run in started], BACK)
    assert all(" succeeded in " in worker.log() for worker in workers)
    check(AWAY)


@pytest.mark.parametrize("seconds", [4, pytest.param(300, marks=pytest.mark.long)])
def test_runs_started_while_the_broker_is_cut_off_go_on_when_it_is_back(
    workers, sandbox, check, valkey_server, seconds
):
    """B02: starting a run does not need the broker, only its speed does."""
    valkey_server.stop()
    try:
        started = [start("counts", f"P-{number}", steps=2) for number in range(20)]
        assert Run.objects.filter(status="pending").count() == 20
        stays(lambda: not Run.objects.filter(status="succeeded").exists(), seconds, lambda: "told")
    finally:
        valkey_server.start()
    # Celery's pause between two tries grows to half a minute.
    settle([run.id for run in started], BACK if seconds < 10 else 2 * BACK)
    assert {now(run).status for run in started} == {"succeeded"}
    check(AWAY)


def test_an_emptied_broker_costs_one_sweep_and_nothing_happens_twice(
    workers, sandbox, check, alice, oscar
):
    """B03: runnable, running, timed and just approved runs, all messages gone."""
    approved = [start("pays", f"A-{number}", "6000.00") for number in range(5)]
    timed = [start("sleeps", f"T-{number}", seconds=1) for number in range(5)]
    wait_until(
        lambda: Run.objects.filter(status="waiting").count() == 10, 15, lambda: "not waiting"
    )
    workers.ground.pause_sweeps()
    # As many as there are slots, so that everything after them stays in the queue.
    running = [start("steps_to_gate", f"R-{number}", steps=2) for number in range(4)]
    wait_until(
        lambda: all(workers.ground.noted(f"R-{number}.at-gate") for number in range(4)),
        10,
        lambda: "not at the gates",
    )
    runnable = [start("counts", f"P-{number}", steps=2) for number in range(20)]
    for approval in Approval.objects.all():
        approve(approval, alice)
    assert sum(queued()) >= 20
    empty_broker()
    workers.ground.resume_sweeps()
    for number in range(4):
        workers.ground.open_gate(f"R-{number}.gate")
    everyone = [*approved, *timed, *running, *runnable]
    settle([run.id for run in everyone], 4 * (TTL + SWEEP))
    assert {now(run).status for run in everyone} == {"succeeded"}
    for run in everyone:
        assert applied(sandbox, run) == [True], types(run)
    assert {lease(run).epoch for run in running} == {1}
    check(AWAY)


def test_a_full_broker_refuses_hints_and_no_run(workers, sandbox, check):
    """B03: a broker that takes no writes costs time, not runs."""
    with broker() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        try:
            started = [start("three", f"P-{number}") for number in range(20)]
            assert len({run.id for run in started}) == 20
        finally:
            client.config_set("maxmemory", "0")
    assert all(worker.alive for worker in workers)
    settle([run.id for run in started], BACK)
    assert {now(run).status for run in started} == {"succeeded"}
    for run in started:
        assert len(sends(sandbox, run)) == 3
    check(AWAY)
