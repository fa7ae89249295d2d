"""Writes to a run's log: one round trip, under the fence, and said in the engine's words."""

import os
from functools import partial

import psycopg
import pytest

from durable import claims, journal, workflow
from durable.errors import CancelRequestedError, LeaseLost, NotApproved
from durable.gate import Statement
from durable.journal import Fact, InboxWaiting, KeyTaken, RowBusy, RowChanged, written
from durable.models import Evidence
from durable.statuses import EventType
from tests.scenario import (
    Elsewhere,
    at_once,
    events,
    execute,
    lease,
    start,
    types,
    value_of,
)

pytestmark = pytest.mark.usefixtures("checked")

FACT = Fact(type=EventType.TIMER_FIRED, task_key="1", node="main", payload='{"a":1}')


@workflow(version="1")
def journal_flow(order):
    return None


@pytest.fixture
def claimed(checked):
    """A run that this process holds."""
    claim = claims.claim(start(journal_flow).id)
    assert claim is not None
    return claim


def append(claim, sync=True):
    journal.journal().append(claim.fence, FACT, sync=sync)


def write(claim, *statements):
    return journal.journal().write(claim.fence, *statements)


def raising(state):
    return Statement(sql=f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$")


@pytest.mark.parametrize("sync", [True, False])
def test_an_appended_event_is_the_new_head(claimed, sync):
    append(claimed, sync)
    event = events(claimed.run)[-1]
    assert (event.type, event.task_key, event.node) == ("timer.fired", "1", "main")
    assert (event.payload, event.epoch, event.actor) == ('{"a":1}', 1, "")
    assert (claimed.fence.last_seq, lease(claimed.run).last_seq) == (event.seq, event.seq)


def test_relaxing_one_commit_leaks_into_no_other():
    with journal.journal().lock:
        shown = journal.journal().link().execute("SHOW synchronous_commit").fetchone()
    assert shown == ("on",)


def test_an_append_tells_of_a_cancel(claimed):
    execute("UPDATE durable_lease SET cancel_requested = true")
    append(claimed)
    assert claimed.fence.cancel_requested


def test_several_statements_are_one_transaction_and_their_rows_come_back(claimed):
    rows = write(claimed, Statement(sql="SELECT 7"), written(claimed.fence, FACT))
    assert rows == [[(7,)], [(claimed.fence.last_seq,)]]
    assert types(claimed.run)[-1] == "timer.fired"


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("SF001", LeaseLost),
        ("SF002", CancelRequestedError),
        ("SF003", NotApproved),
        ("SF004", RowChanged),
        ("SF010", KeyTaken),
        ("SF020", InboxWaiting),
        ("23505", RowChanged),
        ("55P03", RowBusy),
        ("40P01", RowBusy),
        ("XX000", LeaseLost),
    ],
)
def test_what_the_database_raises_leaves_nothing_and_is_said_in_the_engines_words(
    claimed, state, error
):
    before = types(claimed.run)
    with pytest.raises(error):
        write(claimed, written(claimed.fence, FACT), raising(state))
    assert types(claimed.run) == before
    assert claimed.fence.stolen == (state == "SF001")
    assert claimed.fence.lost == (error is LeaseLost)


def test_after_a_refusal_the_connection_is_good_for_the_next_write(claimed):
    with pytest.raises(RowChanged):
        write(claimed, raising("SF004"))
    append(claimed)
    assert types(claimed.run)[-1] == "timer.fired"


def test_a_connection_that_was_cut_is_a_lost_lease_and_the_next_use_opens_another(claimed):
    """B04, invariant 1: an ambiguous commit counts as lost, and is not resent."""
    append(claimed)
    execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'standfast journal' AND datname = current_database()"
    )
    with pytest.raises(LeaseLost):
        append(claimed)
    assert (claimed.fence.lost, claimed.fence.stolen) == (True, False)
    again = claims.claim(claimed.run.id, previous=claimed.fence.owner)
    assert again is not None
    assert types(claimed.run).count("timer.fired") == 1


def test_a_dead_executor_cannot_even_ask(claimed):
    claimed.fence.lose(stolen=False)
    before = types(claimed.run)
    for attempt in (append, write):
        with pytest.raises(LeaseLost):
            attempt(claimed)
    assert types(claimed.run) == before


def test_a_transaction_without_an_event_does_not_count_as_a_renewal(claimed):
    execute("UPDATE durable_lease SET expires_at = clock_timestamp() + interval '1 s'")
    fence = claimed.fence
    fence._confirmed -= 1.0
    before = fence.deadline
    write(claimed, Statement(sql="SELECT 1"))
    assert fence.deadline <= before + 0.3


def test_a_lock_is_waited_for_less_long_than_a_lease_lives(claimed):
    with Elsewhere() as elsewhere:
        elsewhere.execute("SELECT 1 FROM durable_lease FOR NO KEY UPDATE")
        with pytest.raises(RowBusy):
            write(claimed)
    assert not claimed.fence.lost
    write(claimed)


def test_threads_write_one_at_a_time_and_none_is_lost(claimed):
    """P08: one in-process lock from the write until its commit is answered."""
    results = at_once(*[partial(append, claimed)] * 8)
    assert results == [None] * 8
    assert types(claimed.run).count("timer.fired") == 8


def test_reads_of_one_trip_come_back_apart_by_name():
    first, second = journal.journal().read(
        Statement(sql="SELECT 1 AS a"), Statement(sql="SELECT %s::int AS b", params=(2,))
    )
    assert (first, second) == ([{"a": 1}], [{"b": 2}])


def test_a_read_that_fails_is_a_lost_lease():
    with pytest.raises(LeaseLost):
        journal.journal().read(Statement(sql="SELECT 1/0"))


def test_evidence_is_kept_without_a_lease_and_never_in_the_log(claimed):
    """P14."""
    before = types(claimed.run)
    claimed.fence.lose(stolen=True)
    journal.journal().keep_evidence(
        claimed.fence, task_key="1", kind="succeeded", payload='{"id":"r1"}'
    )
    kept = Evidence.objects.get(run_id=claimed.run.id)
    assert (kept.kind, kept.epoch, kept.payload) == ("succeeded", 1, '{"id":"r1"}')
    assert types(claimed.run) == before


def test_a_forked_process_has_a_journal_of_its_own(monkeypatch):
    mine = journal.journal()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert journal.journal() is not mine
    journal._journals.pop(-1)


def test_hardening_waits_until_what_is_visible_is_on_disk(claimed):
    """P17: a page answers only with what survives a crash of the database."""
    append(claimed, sync=False)
    visible = value_of("SELECT pg_current_wal_insert_lsn()")
    journal.harden()
    assert value_of("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", visible)


def test_a_relaxed_commit_is_hardened_by_the_next_synchronous_one(claimed):
    """Invariant 3: the log of the database is ordered."""
    append(claimed, sync=False)
    visible = value_of("SELECT pg_current_wal_insert_lsn()")
    append(claimed, sync=True)
    assert value_of("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", visible)


def test_closing_is_harmless_and_whoever_comes_next_opens_again():
    kept = journal.journal()
    kept.close()
    kept.close()
    assert kept.read(Statement(sql="SELECT 1 AS a")) == [[{"a": 1}]]
    assert isinstance(kept.link(), psycopg.Connection)
