"""PostgreSQL goes away in every way it can; what was stored stays, what was not is done again."""

import httpx
import pytest
from django.db import connection
from knox.models import AuthToken

from durable.models import Event
from tests.after import after_checks
from tests.processes import (
    GONE,
    Workers,
    empty_broker,
    settle,
    wait_until,
)
from tests.scenarios.looking import applied, lease, now, start, types

pytestmark = [
    pytest.mark.crash,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
]


@pytest.fixture
def restart(postgres_server):
    """Stop and start PostgreSQL; this process connects anew."""

    def restart(mode):
        postgres_server.restart(mode)
        connection.close()

    yield restart
    connection.close()


MODES = ["fast", "immediate"]


@pytest.mark.parametrize("mode", MODES)
def test_an_idle_worker_takes_the_next_run_after_a_restart(workers, sandbox, check, restart, mode):
    """B04: the same processes, with connections that they kept."""
    first = [start("three", f"P-{number}") for number in range(4)]
    settle([run.id for run in first])
    pool = {process.pid for process in workers.pool()}
    restart(mode)
    second = [start("three", f"Q-{number}") for number in range(4)]
    settle([run.id for run in second], 20)
    assert {now(run).status for run in [*first, *second]} == {"succeeded"}
    assert {process.pid for process in workers.pool()} == pool
    for run in [*first, *second]:
        assert applied(sandbox, run) == [True, True, True]
    check(GONE)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_under_way_during_a_restart_is_not_made_again(
    workers, sandbox, check, restart, mode
):
    """B04: it is stored under the lease that still holds, or found by asking."""
    sandbox.switch("carrier", "slow", operation="shipment", seconds=2)
    runs = [start("ships", f"P-{number}") for number in range(3)]
    wait_until(lambda: len(sandbox.ledger(method="POST")) == 3, 10, lambda: "not sent")
    restart(mode)
    settle([run.id for run in runs], 30)
    for run in runs:
        assert now(run).status == "succeeded", types(run)
        assert applied(sandbox, run) == [True]
    check(GONE)


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_between_commits_loses_no_run_and_repeats_no_effect(
    workers, sandbox, check, restart, mode
):
    """B04: under load, so that it falls into commits."""
    runs = [start("counts", f"P-{number}", steps=150) for number in range(12)]
    wait_until(lambda: Event.objects.count() > 400, 20, lambda: Event.objects.count())
    restart(mode)
    settle([run.id for run in runs], 40)
    for run in runs:
        assert now(run).status == "succeeded", types(run)[-5:]
        assert applied(sandbox, run) == [True]
        assert types(run).count("task.completed") == 150
    check(GONE)


def test_a_restart_in_the_middle_of_the_sweep_leaves_no_run_behind(
    workers, sandbox, check, postgres_server
):
    """E04: the sweep is repeated, not one-shot."""
    runs = [start("three", f"P-{number}") for number in range(24)]
    wait_until(lambda: Event.objects.count() > 100, 20, lambda: Event.objects.count())
    for worker in workers:
        worker.kill()
    empty_broker()
    workers.ready()
    postgres_server.stop("immediate")
    postgres_server.start()
    connection.close()
    settle([run.id for run in runs], 40)
    assert {now(run).status for run in runs} == {"succeeded"}
    for run in runs:
        assert applied(sandbox, run) == [True, True, True]
    check(GONE)


def test_a_web_server_answers_the_next_request_after_a_restart(web, restart, oscar):
    """B04: no page is lost to a connection that was kept too long."""
    _, token = AuthToken.objects.create(user=oscar)
    headers = {"Authorization": f"Token {token}"}
    with httpx.Client(base_url=web.url, headers=headers, trust_env=False, timeout=20) as client:
        for mode in MODES:
            for _ in range(4):  # some of its threads have a connection
                assert client.get("/api/v1/runs/").status_code == 200
            restart(mode)
            for _ in range(8):
                assert client.get("/api/v1/runs/").status_code == 200


def test_losing_only_the_heartbeat_connection_costs_nothing(workers, sandbox, check):
    """B04: it connects again before the lease is over."""
    run = start("works", "P-1", seconds=3)
    for _ in range(2):
        wait_until(lambda: _terminate("standfast heartbeat"), 5, lambda: types(run))
    settle([run.id])
    assert (now(run).status, lease(run).epoch) == ("succeeded", 1)
    assert len(workers.ground.noted("P-1.work")) == 1
    assert applied(sandbox, run) == [True]
    check(GONE)


def test_losing_the_journal_connection_is_a_lost_lease_that_is_taken_back_at_once(
    workers, sandbox, check
):
    """B04: between two steps; nothing is sent twice, and nobody waits for the TTL."""
    run = start("works", "P-1", seconds=1)
    wait_until(lambda: workers.ground.noted("P-1.work"), 10, lambda: types(run))
    assert _terminate("standfast journal")
    settle([run.id], 10)
    assert now(run).status == "succeeded"
    assert applied(sandbox, run) == [True]
    check(GONE)


def _terminate(name):
    """End the connections of that name; returns how many there were."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s",
            [name],
        )
        return cursor.fetchone()[0]


def test_a_database_used_before_the_fork_is_not_shared_after_it(ground, workers, sandbox):
    """B04: sockets that a parent opened are the parent's."""
    forked = Workers(ground, ("forked",), SCENARIO_TOUCH="1")
    with workers.held(), forked.at_work():
        runs = [start("counts", f"P-{number}", steps=50) for number in range(12)]
        settle([run.id for run in runs], 30)
        assert "touched" in ground.noted("database")
        assert {now(run).status for run in runs} == {"succeeded"}
        for run in runs:
            assert applied(sandbox, run) == [True]
        after_checks(sandbox, list(forked))
