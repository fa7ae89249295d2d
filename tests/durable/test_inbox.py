"""How outsiders reach a run: a row in their own transaction, and a nudge after it."""

import time
from uuid import uuid4

import pytest
from django.db import DatabaseError, transaction

from durable import claims, engine, gate, inbox, interrupt, signals, sweeper, workflow
from durable.errors import InvalidValue
from durable.models import InboxItem
from tests.scenario import Elsewhere, begin, execute, fresh, go, lease, start, types

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def inbox_asks(order):
    return interrupt("Go on?")


def leave(run, type="resume.requested", **options):
    inbox.put(run.id, type, actor="user:oscar", **{"payload": {"reason": "why not"}, **options})


def test_a_fact_makes_the_run_due_and_tells_the_workers_after_the_commit(hints):
    run = begin(inbox_asks)
    hints.clear()
    with transaction.atomic():
        leave(run)
        assert (hints, fresh(run).wake_at) == ([], None)
    assert hints == [run.id]
    assert fresh(run).wake_at is not None


def test_a_fact_that_is_rolled_back_tells_nobody(hints):
    """B08."""
    run = begin(inbox_asks)
    hints.clear()
    with transaction.atomic():
        leave(run)
        transaction.set_rollback(True)
    assert hints == []
    assert not InboxItem.objects.exists()


def test_a_fact_for_a_run_at_work_tells_nobody_and_is_moved_by_its_executor(hints):
    run = start(inbox_asks)
    claimed = claims.claim(run.id)
    assert claimed is not None
    hints.clear()
    leave(run)
    assert hints == []
    engine.Execution(claimed).drive()
    assert "resume.requested" in types(run)


def test_a_listener_that_fails_does_not_fail_the_caller(hints):
    """B03: a full or dead broker is no reason to refuse an answer."""

    def broken(sender, run_id, **kwargs):
        raise ConnectionError("no broker")

    signals.run_ready.connect(broken, weak=False, dispatch_uid="broken")
    try:
        run = begin(inbox_asks)
        leave(run)
    finally:
        signals.run_ready.disconnect(dispatch_uid="broken")
    assert hints == [run.id, run.id]


def test_a_poke_that_cannot_get_the_lease_is_given_up_quickly_and_found_by_the_sweep(monkeypatch):
    """P09: somebody's transaction holds the row; a page does not wait for it."""
    run = begin(inbox_asks)
    with Elsewhere() as elsewhere:
        elsewhere.execute("SELECT 1 FROM durable_lease FOR NO KEY UPDATE")
        began = time.monotonic()
        leave(run)
        assert time.monotonic() - began < 5
    assert fresh(run).wake_at is None
    found = sweeper.sweep(uuid4())
    assert found is not None
    assert found["received"] == 1
    assert fresh(run).wake_at is not None


def test_poking_any_number_of_times_changes_nothing_but_the_time():
    run = begin(inbox_asks)
    before = types(run)
    for _ in range(3):
        inbox.poke(run.id)
    assert (types(run), lease(run).owner) == (before, None)
    assert go(run).status == "waiting"


def test_a_poke_never_delays_what_is_due_earlier():
    run = begin(inbox_asks)
    execute("UPDATE durable_run SET wake_at = clock_timestamp() - interval '1 h'")
    due = fresh(run).wake_at
    inbox.poke(run.id)
    assert fresh(run).wake_at == due


def test_only_facts_of_the_closed_list_can_be_left():
    run = begin(inbox_asks)
    with pytest.raises(ValueError, match="nonsense"):
        leave(run, "nonsense")
    with pytest.raises(InvalidValue, match="payload"):
        leave(run, payload={"reason": "a\x00b"})
    assert not InboxItem.objects.exists()


def test_a_fact_without_a_payload_is_an_empty_one():
    run = begin(inbox_asks)
    inbox.put(run.id, "run.resumed", actor="user:oscar")
    assert InboxItem.objects.get().payload == "{}"


def test_a_database_that_is_away_during_a_poke_costs_only_the_poke(monkeypatch):
    run = begin(inbox_asks)

    def broken():
        raise DatabaseError("away")

    monkeypatch.setattr(gate, "current", broken)
    leave(run)
    assert InboxItem.objects.get().moved_seq is None
