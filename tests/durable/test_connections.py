"""The engine's own connections: every wait has an end."""

import time

import psycopg
import pytest

from durable.connections import open_link

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def link(alone):
    opened = open_link("test")
    yield opened
    opened.close()


def test_a_silent_server_is_an_error_and_not_a_hang(link):
    """P11, B04."""
    link.patience = 0.2
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError, match="did not answer in time"):
        link.execute("SELECT pg_sleep(2)")
    assert time.monotonic() - began < 1.5
    assert link.closed  # whoever does not know what became of a statement goes on elsewhere


def test_each_statement_commits_by_itself(link):
    assert link.autocommit
    link.execute("SELECT 1")
    assert link.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_statements_are_prepared_unless_a_setting_says_otherwise(link, settings):
    """P18: off behind an older PgBouncer."""
    for _ in range(2):
        link.execute("SELECT 1 + %s", (1,))
    assert link.execute("SELECT count(*) > 0 FROM pg_prepared_statements").fetchone() == (True,)
    settings.DURABLE = {**settings.DURABLE, "PREPARED_STATEMENTS": False}
    other = open_link("test")
    for _ in range(8):
        other.execute("SELECT 1 + %s", (1,))
    prepared = other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    other.close()
    assert prepared == (0,)


def test_a_connection_says_what_it_is_for(link):
    assert link.execute("SHOW application_name").fetchone() == ("standfast test",)
