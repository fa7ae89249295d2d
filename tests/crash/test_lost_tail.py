"""A database that crashes and forgets the newest of what everybody had already seen."""

from contextlib import suppress

import psutil
import psycopg
import pytest
from django.db import connection

from tests.after import after_checks
from tests.processes import GONE, Workers, database_url, settle, wait_until
from tests.scenarios.looking import applied, lease, log, now, sends, start, types

pytestmark = [pytest.mark.crash, pytest.mark.django_db(transaction=True)]

STEPS = 5


@pytest.fixture
def wal_writer(postgres_server):
    """The process that writes PostgreSQL's log in the background, slowed down and stoppable."""
    with psycopg.connect(database_url(), autocommit=True) as link:
        link.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        link.execute("SELECT pg_reload_conf()")
        found = link.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        ).fetchone()
    assert found
    writer = psutil.Process(found[0])
    yield writer
    with suppress(psutil.NoSuchProcess):
        writer.resume()
    with psycopg.connect(database_url(), autocommit=True) as link:
        link.execute("ALTER SYSTEM RESET wal_writer_delay")
        link.execute("SELECT pg_reload_conf()")


@pytest.fixture
def patient(ground, workers):
    """One worker whose lease is so long that no heartbeat hardens anything; nobody sweeps."""
    patient = Workers(ground, ("patient",), DURABLE_LEASE_TTL="8", DURABLE_LEASE_MARGIN="1")
    ground.pause_sweeps()
    with workers.held(), patient.at_work():
        yield patient


def crash(postgres_server):
    postgres_server.restart("immediate")
    connection.close()


def behind():
    """Whether something that everybody can see is not yet on disk."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()")
        return cursor.fetchone()[0]


@pytest.mark.parametrize("workflow", ["steps_to_gate", "steps_and_rows"])
def test_steps_that_a_database_crash_lost_are_done_again_before_anything_rests_on_them(
    ground, patient, sandbox, postgres_server, wal_writer, workflow
):
    """P01: the worker survives and remembers more than the database; its next write is refused.

    In the second workflow that write goes through a connection that never broke, so that it is
    the database that says no; the run then waits for the rest of its lease.
    """
    run = start(workflow, "P-1", steps=STEPS)
    wal_writer.suspend()
    wait_until(lambda: ground.noted("P-1.at-gate"), 10, lambda: types(run))
    pool = [process.pid for process in patient.pool()]
    seen = lease(run)
    assert types(run).count("task.completed") == STEPS
    assert behind(), "the steps are on disk: this proves nothing"
    crash(postgres_server)
    lost = seen.last_seq - lease(run).last_seq
    assert lost > 0, "nothing was lost: this proves nothing"
    ground.open_gate("P-1.gate")
    ground.resume_sweeps()
    settle([run.id], 20)
    assert [process.pid for process in patient.pool()] == pool
    assert now(run).status == "succeeded", types(run)
    # In this order: nothing was stored on top of what was lost.
    done = [event.task_key for event in log(run) if event.type == "task.completed"]
    assert done == [str(number) for number in range(1, STEPS + 2)]
    times = sum(len(ground.noted(f"P-1.step{number}")) for number in range(1, STEPS + 1))
    assert times == STEPS + lost
    assert applied(sandbox, run) == [True]
    assert sends(sandbox, run)[0]["fence"] == lease(run).epoch > seen.epoch
    after_checks(sandbox, list(patient), injected=[GONE])


def test_what_a_page_has_shown_survives_a_crash_of_the_database(
    ground, patient, sandbox, postgres_server, wal_writer
):
    """P17: whoever reads a live run hardens it before answering."""
    from durable.journal import harden

    run = start("steps_to_gate", "P-1", steps=STEPS)
    wal_writer.suspend()
    wait_until(lambda: ground.noted("P-1.at-gate"), 10, lambda: types(run))
    assert behind(), "the steps are on disk: this proves nothing"
    shown = types(run)
    harden()
    crash(postgres_server)
    assert types(run) == shown
    ground.open_gate("P-1.gate")
    ground.resume_sweeps()
    settle([run.id], 20)
    assert types(run)[: len(shown)] == shown
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [True])
    after_checks(sandbox, list(patient), injected=[GONE])
