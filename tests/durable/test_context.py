"""What an active run's body calls into: paths, stops and branches."""

import threading
import time
from contextvars import Context as Variables
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from durable import context as contexts
from durable import gather, workflow
from durable.context import Context, Scope, current, inside
from durable.control import Abandon, Block, CancelNow, Replay, Suspend, Wait
from durable.errors import Misplaced, OutsideRun
from durable.history import History
from durable.leases import Fence
from durable.statuses import Phase, WaitingFor
from tests.scenario import begin
from tests.shop import service, ship


@pytest.fixture
def context():
    """A context whose lease lives and whose log is empty."""
    fence = Fence(
        run_id=uuid4(),
        owner=uuid4(),
        epoch=1,
        last_seq=1,
        phase="forward",
        cancel_requested=False,
        ttl=timedelta(seconds=60),
        margin=1.0,
        sent=time.monotonic(),
    )
    nothing: Any = SimpleNamespace()
    return Context(run=nothing, workflow=nothing, fence=fence, journal=nothing, history=History())


def suspend():
    return Suspend(Wait(waiting_for=WaitingFor.ANSWER))


def test_calls_are_numbered_within_their_branch_whatever_the_others_do(context):
    """P08."""
    root = Scope(context, "")
    first, second = Scope(context, f"{root.next_path()}."), Scope(context, f"{root.next_path()}.")
    assert [second.next_path(), first.next_path(), second.next_path()] == ["2.1", "1.1", "2.2"]
    assert root.next_path() == "3"


def test_a_stopped_context_raises_the_same_again_in_every_branch(context):
    """Invariant 13."""
    block = Block("CODE", "why")
    with pytest.raises(Block):
        context.stop(block)
    for scope in (Scope(context, ""), Scope(context, "1.")):
        with pytest.raises(Block) as again:
            context.check(scope)
        assert again.value is block


def test_a_lost_lease_outranks_every_other_stop_and_none_outranks_it(context):
    with pytest.raises(Replay):
        context.stop(Replay())
    with pytest.raises(Replay):
        context.stop(CancelNow())
    with pytest.raises(Abandon):
        context.stop(Abandon())
    with pytest.raises(Abandon):
        context.stop(Block("CODE", "why"))


def test_a_wait_closes_its_branch_and_not_its_siblings(context):
    waiting, sibling = Scope(context, "1."), Scope(context, "2.")
    with pytest.raises(Suspend):
        context.suspend(waiting, suspend())
    with pytest.raises(Suspend):
        context.check(waiting)
    context.check(sibling)
    assert len(context.waits) == 1


def test_a_cancel_that_was_heard_of_stops_going_forward_and_not_undoing(context):
    """Invariant 9, P07."""
    context.fence.cancel_requested = True
    context.fence.phase = Phase.COMPENSATING
    context.check(Scope(context, ""))
    context.fence.phase = Phase.FORWARD
    with pytest.raises(CancelNow):
        context.check(Scope(context, ""))


def test_a_lease_that_is_over_stops_the_context(context):
    context.fence.lose(stolen=False)
    with pytest.raises(Abandon):
        context.check(Scope(context, ""))


def test_without_a_run_there_is_no_scope():
    """P04."""
    with pytest.raises(OutsideRun):
        current()


def test_inside_a_body_recorded_calls_are_refused_and_the_activity_is_said(context):
    """P04."""
    with context.active() as scope:
        with inside("charge", context.fence):
            assert context.fence.activity == "charge"
            with pytest.raises(Misplaced, match="charge"):
                current()
        assert context.fence.activity == ""
        assert current() is scope


@pytest.mark.django_db
def test_inside_a_transaction_recorded_calls_are_refused(context):
    with context.active(), transaction.atomic(), pytest.raises(Misplaced, match="atomic"):
        current()


def test_a_context_that_was_left_is_closed(context):
    with context.active() as scope:
        pass
    with pytest.raises(Abandon):
        context.check(scope)
    with pytest.raises(OutsideRun):
        current()


def test_a_branch_keeps_its_own_scope_and_what_it_raised(context):
    def fails():
        raise ValueError("no")

    with context.active() as root:
        branch = Scope(context, f"{root.next_path()}.")
        good = context.branch(branch, lambda: contexts._scope.get())
        bad = context.branch(Scope(context, "2."), fails)
        context.come_to_rest()
    assert good.result() is branch
    with pytest.raises(ValueError, match="no"):
        bad.result()


def test_recorded_calls_that_were_not_made_again_are_left_over(context):
    at = datetime.now(UTC)
    rows = [
        {
            "seq": n,
            "type": "task.completed",
            "task_key": path,
            "actor": "",
            "at": at,
            "payload": "{}",
        }
        for n, path in enumerate(["1", "2", "undo:1"])
    ]
    context.history.add(rows)
    assert context.leftover() == "1"
    context.used.update({"1", "2"})
    assert context.leftover() == ""


@pytest.mark.usefixtures("alone")
def test_a_later_thread_with_the_context_of_a_finished_branch_has_no_run():
    """P04: the system gives the ids of ended threads to new ones."""
    refused: list[str] = []

    def stray():
        try:
            ship("A-9")
        except BaseException as error:
            refused.append(type(error).__name__)

    @workflow(version="1")
    def context_recycles(order):
        kept: list[Variables] = []
        gather(lambda: kept.append(copy_context()))
        for _ in range(20):
            thread = threading.Thread(target=kept[0].run, args=(stray,))
            thread.start()
            thread.join()

    assert begin(context_recycles).status == "succeeded"
    assert (service.calls, set(refused)) == ([], {"OutsideRun"})
