"""Nobody's transaction holds up a run; whoever waited for a lock looks again (P02, P09, P12)."""

import json
import threading
import time
from functools import partial

import pytest
from django.db import connection, transaction

from approvals.errors import ApprovalError
from approvals.models import Approval
from durable import (
    Retry,
    claims,
    engine,
    gather,
    inbox,
    interrupt,
    journal,
    records,
    runs,
    task,
    workflow,
)
from durable.errors import DurableError
from durable.gate import Statement
from durable.journal import RowChanged
from durable.models import InboxItem, Interrupt, Lease, OutboxMessage, uuid7
from tests.approvals.miniature import say
from tests.crashes import crash
from tests.factories import make_message
from tests.people import make_person
from tests.scenario import (
    Elsewhere,
    at_once,
    begin,
    events,
    fresh,
    go,
    lapse,
    lease,
    output,
    payloads,
    somebody_waits_for_a_lock,
    start,
    take_over,
    types,
    value_of,
)
from tests.shop import pay, service

pytestmark = pytest.mark.usefixtures("checked")


def deadlocks():
    connection.close()  # statistics are fixed within a transaction, and sent at its end
    return value_of("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


@pytest.fixture
def brief_lease(settings):
    """A lease that a task of two seconds outlives unless it is renewed."""
    settings.DURABLE = {**settings.DURABLE, "LEASE_TTL": 1.5, "LEASE_MARGIN": 0.3}


@workflow(version="1")
def locks_asks(order):
    return interrupt("Go on?")


# Parking (P02) -----------------------------------------------------------------------------------


def parks_while(monkeypatch, run, happens):
    """`happens` is committed while the run's executor waits for the lease row to park."""
    original = engine.Execution._park
    elsewhere = Elsewhere()
    threads: list[threading.Thread] = []

    def release():
        somebody_waits_for_a_lock()
        before = value_of("SELECT count(*) FROM durable_inboxitem")
        happening = threading.Thread(target=lambda: at_once(happens))
        happening.start()
        while value_of("SELECT count(*) FROM durable_inboxitem") == before:
            time.sleep(0.005)
        elsewhere.commit()
        happening.join()
        connection.close()

    def park(self, waits):
        if not threads:
            elsewhere.execute("SELECT 1 FROM durable_lease FOR NO KEY UPDATE")
            threads.append(threading.Thread(target=release))
            threads[0].start()
        original(self, waits)

    monkeypatch.setattr(engine.Execution, "_park", park)
    with elsewhere:
        run = go(run)
        threads[0].join()
    return run


def test_an_answer_committed_while_the_run_parks_is_read_and_not_left_lying(monkeypatch):
    """P02."""
    run = start(locks_asks)

    def answer_it():
        runs.answer(Interrupt.objects.get(run=run).id, "yes", actor="user:alice")

    assert output(parks_while(monkeypatch, run, answer_it)) == "yes"


def test_a_cancel_committed_while_the_run_parks_is_obeyed(monkeypatch):
    """P02."""
    run = start(locks_asks)
    cancel = partial(runs.cancel, run.id, actor="user:oscar", reason="changed my mind")
    assert parks_while(monkeypatch, run, cancel).status == "cancelled"


def test_a_write_that_meets_no_row_leaves_no_event_beside_it():
    """P02: an outcome for an action that is not running stores nothing at all."""
    run = begin(locks_asks)
    inbox.poke(run.id)
    claimed = claims.claim(run.id)
    assert claimed is not None
    before = types(run)
    outcome = ("succeeded", "null", None, None, claimed.fence.ttl)
    told = ("external.completed", "main", "1", "{}")
    settling = Statement(sql=records.SETTLE, params=(run.id, uuid7(), 1, *outcome, *told))
    with pytest.raises(RowChanged):
        journal.journal().write(claimed.fence, settling)
    assert types(run) == before
    assert lease(run).last_seq == len(before)


@workflow(version="1")
def pays(order):
    return pay(order, "10")["id"]


# Deadlocks (P09) ---------------------------------------------------------------------------------


@workflow(version="1")
def pays_and_asks(order):
    paid = pay(order, "6000")
    return [paid["id"], interrupt("Go on?")]


def test_deciding_cancelling_answering_and_working_at_once_never_deadlock(large_payments_ask):
    """P09: eight rounds of everybody against everybody."""
    make_person("alice", "approver")
    before = deadlocks()
    for round in range(8):
        run = begin(pays_and_asks, f"A-{round}")
        approval = Approval.objects.get(run=run)
        results = at_once(
            partial(say, approval, "approve"),
            partial(runs.cancel, run.id, actor="user:oscar", reason="changed my mind"),
            partial(runs.cancel, run.id, actor="user:olga", reason="me too"),
            partial(engine.advance, run.id),
            partial(engine.advance, run.id),
            partial(inbox.poke, run.id),
        )
        odd = [
            r
            for r in results
            if isinstance(r, BaseException) and not isinstance(r, ApprovalError | DurableError)
        ]
        assert odd == []
        assert go(run).status == "cancelled"
        assert len(service.keys(f"A-{round}:")) in (0, 2)  # not at all, or done and undone
    assert deadlocks() == before


def test_a_callers_long_transaction_holds_up_neither_the_run_nor_its_heartbeat(brief_lease):
    """P09: an answer waits in somebody's open transaction for longer than a lease lives."""

    @task()
    def outlasts_a_lease(order):
        time.sleep(2)
        return "done"

    @workflow(version="1")
    def works_beside_a_question(order):
        return gather(lambda: interrupt("Go on?"), lambda: outlasts_a_lease(order))

    run = start(works_beside_a_question)
    may_commit = threading.Event()

    def answer_in_a_long_transaction():
        while not Interrupt.objects.filter(run=run).exists():
            time.sleep(0.01)
        with transaction.atomic():
            runs.answer(Interrupt.objects.get(run=run).id, "yes", actor="user:alice")
            inbox.put(run.id, "resume.requested", actor="user:oscar", payload={"reason": "x"})
            assert may_commit.wait(20)

    def work():
        engine.advance(run.id)
        may_commit.set()

    worked = at_once(work, answer_in_a_long_transaction)
    assert worked == [None, None]
    assert [event.epoch for event in events(run, "lease.acquired")] == [1]
    assert output(go(run)) == ["yes", "done"]


def test_twenty_who_leave_a_fact_at_once_lose_nothing_and_share_no_number():
    """L09: one executor moves what they left, in one order."""
    run = begin(locks_asks)
    at_once(*[partial(_cancel_quietly, run, f"person {n}") for n in range(20)])
    assert go(run).status == "cancelled"
    told = [fact["reason"] for fact in payloads(run, "cancel.requested")]
    received = InboxItem.objects.filter(run_id=run.id).order_by("moved_seq")
    assert [json.loads(item.payload)["reason"] for item in received] == told
    assert len(set(told)) == 20


def _cancel_quietly(run, reason):
    inbox.put(run.id, "cancel.requested", actor="user:oscar", payload={"reason": reason})


# An atomic task (P12) ----------------------------------------------------------------------------


@task(atomic=True)
def long_atomic(order):
    make_message(aggregate_id=order)
    STARTED.set()
    time.sleep(2)
    return "stored"


STARTED = threading.Event()


@workflow(version="1")
def with_a_long_atomic_task(order):
    return long_atomic(order)


def test_a_long_atomic_task_blocks_neither_heartbeat_nor_cancel(brief_lease):
    """P12."""
    STARTED.clear()
    run = start(with_a_long_atomic_task, "A-1")

    def cancel():
        assert STARTED.wait(10)
        began = time.monotonic()
        runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
        return time.monotonic() - began

    _, took = at_once(partial(engine.advance, run.id), cancel)
    assert took < 1
    run = fresh(run)
    assert (run.status, lease(run).epoch) == ("cancelled", 1)
    assert "task.completed" in types(run)


def test_an_atomic_task_whose_fence_fails_leaves_neither_rows_nor_record():
    """P12."""

    @task(atomic=True)
    def outlived_atomic(order):
        make_message(aggregate_id=f"{order} of {threading.current_thread().name}")
        if threading.current_thread() is threading.main_thread():
            at_once(lambda: take_over(run))
        return "stored"

    @workflow(version="1")
    def outlived_in_a_transaction(order):
        return outlived_atomic(order)

    run = start(outlived_in_a_transaction, "A-1")
    go(run)
    assert output(fresh(run)) == "stored"
    assert OutboxMessage.objects.count() == 1
    assert [event.epoch for event in events(run, "task.completed")] == [2]


def test_an_atomic_task_that_raises_leaves_no_rows_and_is_recorded_as_failed():
    @task(atomic=True, retry=Retry(attempts=1))
    def breaks(order):
        make_message(aggregate_id=order)
        raise ValueError("no")

    @workflow(version="1")
    def with_a_breaking_task(order):
        try:
            return breaks(order)
        except ValueError as error:
            return str(error)

    assert output(begin(with_a_breaking_task, "A-1")) == "no"
    assert not OutboxMessage.objects.exists()


def test_a_hook_that_raises_after_the_commit_does_not_undo_the_record():
    """B08."""

    def raises():
        raise RuntimeError("hook")

    @task(atomic=True)
    def with_a_hook(order):
        make_message(aggregate_id=order)
        transaction.on_commit(raises)
        return "stored"

    @workflow(version="1")
    def hooked(order):
        return with_a_hook(order)

    run = begin(hooked, "A-1")
    assert output(run) == "stored"
    assert OutboxMessage.objects.count() == 1
    assert len(events(run, "task.completed")) == 1


# Claims ------------------------------------------------------------------------------------------


def test_a_claim_does_not_queue_behind_whoever_holds_the_lease_row():
    """L06: the other nineteen return at once."""
    run = start(locks_asks)
    with Elsewhere() as elsewhere:
        elsewhere.execute("SELECT 1 FROM durable_lease FOR NO KEY UPDATE")
        began = time.monotonic()
        assert engine.advance(run.id) is False
        assert time.monotonic() - began < 0.5
    assert types(run) == ["run.created"]


def test_an_executor_that_cannot_get_its_row_within_its_lease_gives_up_and_comes_back():
    """Invariant 1: lock waits end before the lease does."""
    run = start(pays, "A-1")
    with crash(at="durable_effect_begin", when="before"):
        go(run)
    assert Lease.objects.get(run=run).owner is not None
    lapse(run)
    with Elsewhere() as elsewhere:
        released = threading.Timer(1.2, elsewhere.commit)

        def hold():
            elsewhere.execute("SELECT 1 FROM durable_lease FOR NO KEY UPDATE")
            released.start()

        @task()
        def held_up(order):
            hold()
            return order

        @workflow(name="pays", version="1")
        def pays_later(order):
            held_up(order)
            return pay(order, "10")["id"]

        run = take_over(run)
        released.join()
    assert output(run if run.ended_at else take_over(run)) == "r1"
    assert service.calls == ["A-1:pay"]
