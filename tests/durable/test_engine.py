"""Advancing one run until it ends, waits, blocks or loses its lease."""

import json
from uuid import uuid4

import pytest

from durable import canonical, claims, engine, interrupt, runs, task, workflow
from durable.errors import LeaseLost
from durable.journal import InboxWaiting
from durable.leases import heartbeat
from durable.models import Checkpoint
from tests.crashes import Crash
from tests.scenario import (
    answer,
    begin,
    events,
    execute,
    fresh,
    go,
    is_at_rest,
    lease,
    output,
    start,
    take_over,
    types,
)
from tests.shop import pay

pytestmark = pytest.mark.usefixtures("checked")


@task()
def engine_step(value):
    return value


@workflow(version="1")
def engine_flow(order):
    engine_step("a")
    return {"said": interrupt("Well?"), "paid": pay(order, "10")["id"]}


def test_a_run_tells_its_whole_story_in_order():
    run = begin(engine_flow, "A-1", goal="Pay A-1")
    answer(run, "yes")
    run = go(run)
    assert output(run) == {"said": "yes", "paid": "r1"}
    assert types(run) == [
        "run.created",
        "lease.acquired",
        "run.started",
        "checkpoint.committed",
        "node.started",
        "task.completed",
        "interrupt.waiting",
        "lease.acquired",
        "run.resumed",
        "interrupt.answered",
        "external.requested",
        "external.completed",
        "node.completed",
        "checkpoint.committed",
        "run.succeeded",
    ]
    assert run.ended_at is not None
    assert is_at_rest(run)


def test_checkpoints_hold_the_state_at_both_ends_with_its_digest():
    run = begin(engine_flow, "A-1")
    answer(run, "yes")
    go(run)
    first, last = Checkpoint.objects.filter(run_id=run.id).order_by("seq")
    assert (first.state, first.next_nodes, first.super_step) == ('"A-1"', ["main"], 0)
    assert json.loads(last.state) == {"said": "yes", "paid": "r1"}
    assert (last.parent_seq, last.completed, last.next_nodes) == (first.seq, ["main"], [])
    for checkpoint in (first, last):
        assert checkpoint.digest == canonical.digest("checkpoint", checkpoint.state)


def test_a_run_that_is_not_there_or_not_due_is_not_advanced():
    assert engine.advance(uuid4()) is False
    run = begin(engine_flow, "A-1")
    assert engine.advance(run.id) is False


def test_a_body_that_raises_ends_the_run_as_failed_with_what_it_raised():
    @workflow(version="1")
    def engine_raises(order):
        raise KeyError("missing")

    run = begin(engine_raises)
    assert (run.status, run.code, run.reason) == ("failed", "FAILED", "'missing'")
    assert json.loads(run.error or "")["kind"] == "builtins:KeyError"
    assert types(run)[-1] == "run.failed"


def test_a_fault_of_the_engine_leaves_the_run_to_another_claim(monkeypatch):
    """It is logged and raised to nobody; after several a person looks."""
    run = start(engine_flow, "A-1")
    with monkeypatch.context() as broken:
        broken.setattr(engine.Execution, "_run_body", lambda *_: 1 / 0)
        assert engine.advance(run.id) is True
    assert fresh(run).status == "running"
    assert take_over(run).waiting_for == "answer"


def test_a_run_that_cannot_settle_is_left_to_another_claim(monkeypatch):
    run = start(engine_flow, "A-1")

    def never(self):
        raise InboxWaiting

    with monkeypatch.context() as broken:
        broken.setattr(engine.Execution, "_advance_once", never)
        claim = claims.claim(run.id)
        assert claim is not None
        with pytest.raises(LeaseLost):
            engine.Execution(claim).drive()
    assert take_over(run).waiting_for == "answer"


def test_a_database_that_is_away_leaves_the_run_to_the_sweep(monkeypatch):
    def away(*args, **options):
        raise LeaseLost("the database is away")

    run = start(engine_flow, "A-1")
    with monkeypatch.context() as broken:
        broken.setattr(claims, "claim", away)
        assert engine.advance(run.id) is False
    assert go(run).waiting_for == "answer"


def test_a_run_blocks_once_and_can_be_resumed():
    @workflow(name="engine_blocked", version="1")
    def first(order):
        engine_step("a")
        interrupt("Well?")

    run = begin(first)

    @workflow(name="engine_blocked", version="1")
    def second(order):
        engine_step("b")

    execute("UPDATE durable_run SET wake_at = clock_timestamp()")
    run = go(run)
    assert (run.status, run.requires_operator, run.wake_at) == ("blocked", True, None)
    assert run.checkpoint_seq == events(run, "checkpoint.committed")[-1].seq
    assert run.failure_class == "non_recoverable"
    workflow(name="engine_blocked", version="1")(first.definition.function)
    runs.resume(run.id, actor="user:oscar", reason="repaired")
    run = go(run)
    assert (run.status, run.code, run.requires_operator) == ("waiting", "", False)


def test_everything_is_let_go_after_a_crash_in_the_engines_own_hands():
    @workflow(version="1")
    def engine_dies(order):
        raise Crash

    run = start(engine_dies)
    with pytest.raises(Crash):
        go(run)
    assert not heartbeat()._fences
    assert lease(run).owner is not None
