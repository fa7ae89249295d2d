import time
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection

from config import servers

pytestmark = pytest.mark.django_db


def failures(client) -> dict[str, str]:
    """What `/readyz` finds wanting, by the name of the check."""
    answer = client.get("/readyz")
    failed = {c["name"]: c["detail"] for c in answer.json()["checks"] if not c["ok"]}
    assert answer.status_code == (503 if failed else 200)
    assert answer.json()["ready"] is not bool(failed)
    return failed


def test_healthz_answers_without_the_database(client, django_assert_num_queries):
    with django_assert_num_queries(0):
        answer = client.get("/healthz")
    assert (answer.status_code, answer.content) == (200, b"ok\n")


def test_readyz_passes_on_a_complete_installation(client):
    assert failures(client) == {}
    names = [check["name"] for check in client.get("/readyz").json()["checks"]]
    assert names == ["database", "migrations", "broker", "sweeper"]


def test_a_broker_that_is_gone_makes_it_unready_and_nothing_else(client, settings):
    settings.BROKER_URL = f"redis://127.0.0.1:{servers.free_port()}/0"
    assert list(failures(client)) == ["broker"]


def test_a_missing_migration_makes_it_unready(client):
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'sessions'")
    assert "migrations are not applied" in failures(client)["migrations"]


def swept(seconds_ago: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO durable_sweeper (id, worker, swept_at, found)"
            " VALUES (1, 'worker1', clock_timestamp() - make_interval(secs => %s), '{}')"
            " ON CONFLICT (id) DO UPDATE SET swept_at = excluded.swept_at",
            [seconds_ago],
        )


def test_a_worker_that_sweeps_makes_it_ready(client):
    swept(seconds_ago=1)
    assert failures(client) == {}


def test_workers_that_all_stopped_sweeping_make_it_unready(client):
    swept(seconds_ago=3600)
    assert failures(client) == {
        "sweeper": "swept 3600 s ago: no worker looks for lost work; start one"
    }


@pytest.fixture
def forgetful_postgres(postgres_server: servers.Postgres) -> Iterator[None]:
    """The session's PostgreSQL with fsync off, for one test."""
    with psycopg.connect(postgres_server.url, autocommit=True) as administrator:
        administrator.execute("ALTER SYSTEM SET fsync = off")
        administrator.execute("SELECT pg_reload_conf()")
        yield
        administrator.execute("ALTER SYSTEM RESET fsync")
        administrator.execute("SELECT pg_reload_conf()")


def test_a_database_that_forgets_commits_is_refused(client, forgetful_postgres):
    deadline = time.monotonic() + 5
    # The signal reaches each server process in its own time.
    while not (found := failures(client)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "fsync is off" in found["database"]
