"""Workers killed or frozen in the middle of an outside action, and what their successors do."""

import os
import signal
import time
from itertools import product

import pytest
from django.db import connection

from approvals.models import Approval, Permit
from durable import effects, errors, runs
from durable.models import Evidence
from durable.tasks import advance
from tests.processes import TTL, empty_broker, happened, settle, stays, thaw, wait_until
from tests.scenarios.looking import (
    applied,
    approve,
    clock,
    lease,
    log,
    now,
    output,
    record,
    sends,
    settled,
    start,
    types,
)
from tests.scenarios.workflows import LANDS_LATE

pytestmark = [
    pytest.mark.crash,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
]

POINTS = ("K1", "K1b", "K2", "K3", "K4", "K5")


def test_wherever_a_worker_dies_the_second_step_of_three_happens_once(workers, sandbox, check):
    """E02: six kill points of the middle step, each with a delay before either write or none."""
    killed, started = {}, {}
    for point, delayed in product(POINTS, ("", "K1", "K2")):
        order = f"{point}-slow{delayed}-."
        if delayed:
            workers.delay_at(delayed, f"{order}:ship", 0.5)
        killed[order] = workers.crash_at(point, f"{order}:ship")
        started[order] = start("three", order)
    settle([run.id for run in started.values()], 90)
    for order, run in started.items():
        assert killed[order].exists(), f"nobody died at {order}"
        assert now(run).status == "succeeded", (order, types(run))
        shipped = sends(sandbox, run, operation="shipment")
        assert [entry["applied"] for entry in shipped] == [1], (order, shipped)
        looked = sandbox.ledger(method="GET", key=f"{order}:ship")
        assert bool(looked) == (order.split("-")[0] in ("K1b", "K2")), (order, looked)
        assert sandbox.applied("charge", order) == 1
        assert sandbox.applied("message", order) == 1, order
    check()


@pytest.mark.parametrize("happened_outside", [True, False])
def test_a_payment_without_answer_waits_for_a_person_and_is_never_tried_blindly(
    workers, sandbox, check, happened_outside
):
    """E03: a timeout is no failure; what the operator found out decides, under the same key."""
    behaviour = "apply-then-silence" if happened_outside else "silence"
    sandbox.switch("payments", behaviour, operation="charge")
    run = start("pays_blind", "P-1")
    settle([run.id])
    assert (now(run).status, now(run).code) == ("blocked", "EFFECT_UNKNOWN")
    assert record(run).status == "unknown"
    assert len(sends(sandbox, run)) == 1
    sandbox.switch("payments", "ok", operation="charge")
    operation = record(run).operation_id
    if happened_outside:
        effects.resolve_happened(
            operation, resource_id="r9", actor="user:oscar", reason="it is on the statement"
        )
    else:
        with pytest.raises(errors.TooEarly):  # the first call may still land
            _not_happened(operation)
        wait_until(lambda: clock() > settled(record(run)), 10, lambda: record(run))
        _not_happened(operation)
    settle([run.id])
    assert now(run).status == "succeeded", types(run)
    paid = sends(sandbox, run, operation="charge")
    assert len({entry["key"] for entry in paid}) == 1
    if happened_outside:
        assert len(paid) == 1
        assert output(run) == {"id": "r9"}
        assert record(run, "scenario_pay_blind").external_resource_id == "r9"
    else:
        assert [entry["applied"] for entry in paid] == [0, 1]
    check()


def _not_happened(operation_id):
    effects.resolve_not_happened(
        operation_id, actor="user:oscar", reason="the statement does not have it"
    )


def test_a_worker_frozen_past_its_lease_sends_too_late_and_is_refused(workers, sandbox, check):
    """L01: the fence reaches the outside; what the loser learned is kept as evidence (P14)."""
    frozen = workers.freeze_at("sending", "P-1:pay")
    run = start("pays", "P-1")
    happened(frozen)
    old = lease(run)
    wait_until(
        lambda: lease(run).epoch > old.epoch and not now(run).wake_at, 3 * TTL, lambda: types(run)
    )
    settle([run.id])
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [1])
    head, answer = lease(run).last_seq, output(run)
    thaw(frozen)
    wait_until(lambda: len(sends(sandbox, run)) == 2, 10, lambda: sends(sandbox, run))
    kept = wait_until(lambda: Evidence.objects.filter(run_id=run.id).first(), 10, list)
    assert (kept.epoch, kept.operation_id) == (old.epoch, record(run).operation_id)
    assert "stale_fence" in kept.payload
    late = sends(sandbox, run)[-1]
    assert (late["status"], late["code"], late["applied"]) == (409, "stale_fence", 0)
    assert late["fence"] == old.epoch
    assert (lease(run).last_seq, output(run)) == (head, answer)
    assert record(run).status == "succeeded"
    check()


def test_a_worker_frozen_before_its_call_makes_no_call_when_it_wakes(workers, sandbox, check):
    """L01: its own clock says that the lease is over, before anything leaves."""
    frozen = workers.freeze_at("K1b", "P-1:pay")
    run = start("pays", "P-1")
    happened(frozen)
    settle([run.id])
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [1])
    head = lease(run).last_seq
    thaw(frozen)
    stays(lambda: len(sends(sandbox, run)) == 1, 1.5, lambda: sends(sandbox, run))
    assert lease(run).last_seq == head
    check()


def test_a_call_that_lands_after_everybody_gave_up_on_it_is_not_made_twice(workers, sandbox, check):
    """P03: "not found" is not believed, and nobody may say so, until the call can land no more."""
    sandbox.switch("payments", "late", operation="charge", seconds=LANDS_LATE, times=1)
    run = start("pays_late", "P-1")
    wait_until(lambda: now(run).waiting_for == "reconcile", 15, lambda: types(run))
    assert "not_found" in log(run)[-1].payload
    with pytest.raises(errors.TooEarly):
        _not_happened(record(run).operation_id)
    settle([run.id])
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [1])
    check()


def test_a_run_cancelled_over_a_call_that_still_lands_gives_the_money_back(workers, sandbox, check):
    """P03, P07: no refund before the charge is known, one after it landed."""
    sandbox.switch("payments", "late", operation="charge", seconds=LANDS_LATE, times=1)
    run = start("pays_late", "P-1")
    wait_until(lambda: now(run).waiting_for == "reconcile", 15, lambda: types(run))
    runs.cancel(run.id, actor="user:oscar", reason="not wanted any more")
    wait_until(lambda: "compensation.started" in types(run), 10, lambda: types(run))
    settle([run.id])
    assert now(run).status == "cancelled", types(run)
    charged, refunded = sends(sandbox, run)
    assert (charged["operation"], charged["applied"]) == ("charge", 1)
    assert (refunded["operation"], refunded["applied"]) == ("refund", 1)
    assert record(run, "scenario_pay_late").status == "compensated"
    check()


@pytest.mark.parametrize("point", ["K1", "K1b", "K2"])
def test_an_approved_payment_whose_worker_dies_is_made_once_on_its_one_approval(
    workers, sandbox, check, alice, oscar, point
):
    """A14: approve, kill, then two workers and a hand-made wake-up meet."""
    run = start("pays", "P-1", "6000.00")
    settle([run.id])
    killed = workers.crash_at(point, "P-1:pay")
    approve(Approval.objects.get(), alice)
    happened(killed)
    for _ in range(4):
        advance.delay(str(run.id))
    settle([run.id])
    assert ("external.unknown" in types(run)) == (point != "K1")
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [1])
    assert Approval.objects.get().status == "approved"
    permit = Permit.objects.get()
    assert (permit.status, permit.operation_id) == ("consumed", record(run).operation_id)
    check()


def test_a_second_action_with_equal_parameters_needs_an_approval_of_its_own(
    workers, sandbox, check, alice, oscar
):
    """A14: an approval is bound to its run and operation."""
    run = start("pays_and_pays_again", "P-1", "6000.00")
    settle([run.id])
    approve(Approval.objects.get(), alice)
    wait_until(lambda: Approval.objects.count() == 2, 10, lambda: types(run))
    settle([run.id])
    assert now(run).waiting_for == "approval"
    assert applied(sandbox, run) == [1]
    approve(Approval.objects.get(status="pending"), alice)
    settle([run.id])
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [1, 1])
    assert Permit.objects.filter(status="consumed").count() == 2
    check()


def test_the_same_payment_at_a_second_place_takes_the_stored_answer(
    workers, sandbox, check, alice, oscar
):
    """A14: one key is one payment, and uses one approval, however often the body asks."""
    run = start("pays_twice", "P-1", "6000.00")
    settle([run.id])
    approve(Approval.objects.get(), alice)
    settle([run.id])
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [1])
    first, second = output(run)
    assert first == second
    assert (Approval.objects.count(), Permit.objects.count()) == (1, 1)
    check()


def test_a_step_that_kills_every_worker_is_given_up_and_harms_nobody_else(workers, sandbox, check):
    """E14: attempts are charged at the claim; the healthy runs beside it finish."""
    bad = start("dies", "P-bad")
    healthy = [start("counts", f"P-{number}", steps=3) for number in range(10)]
    settle([run.id for run in healthy], 30)
    assert {now(run).status for run in healthy} == {"succeeded"}
    settle([bad.id], 60)
    assert (now(bad).status, now(bad).code) == ("blocked", "WORKER_LOST")
    tries = len(workers.ground.noted("P-bad.died"))
    assert 1 <= tries <= 4
    runs.cancel(bad.id, actor="user:oscar", reason="it kills workers")
    settle([bad.id])
    assert now(bad).status == "cancelled"
    assert len(workers.ground.noted("P-bad.died")) == tries
    check()


def test_a_run_between_two_steps_goes_on_although_its_worker_and_every_message_are_gone(
    workers, sandbox, check
):
    """E06: killed when it parked, with an empty broker; the sweep alone finds it."""
    killed = workers.crash_at("K4", "P-1:ship")
    run = start("three", "P-1")
    happened(killed)
    empty_broker()
    workers[0].kill()
    workers.ready()
    settle([run.id])
    assert now(run).status == "succeeded"
    assert applied(sandbox, run) == [1, 1, 1]
    check()


def test_a_worker_that_is_told_to_stop_finishes_its_step_and_uses_up_no_attempt(
    workers, sandbox, check
):
    """E14: polite deploys during a healthy long step."""
    run = start("works", "P-1", seconds=2)
    wait_until(lambda: workers.ground.noted("P-1.work"), 10, lambda: types(run))
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: not any(worker.alive for worker in workers), 15, lambda: types(run))
    workers.ready()
    settle([run.id])
    assert (now(run).status, lease(run).epoch) == ("succeeded", 1)
    assert len(workers.ground.noted("P-1.work")) == 1
    assert applied(sandbox, run) == [True]
    check()


def test_a_long_step_keeps_no_transaction_open_and_no_cancel_waiting(workers, sandbox, check):
    """P12 in part: nobody waits for somebody else's work."""
    run = start("works", "P-1", seconds=2.5)
    wait_until(lambda: workers.ground.noted("P-1.work"), 10, lambda: types(run))
    began = time.monotonic()
    runs.cancel(run.id, actor="user:oscar", reason="not wanted any more")
    assert time.monotonic() - began < 1
    assert lease(run).cancel_requested
    stays(lambda: not open_transactions(), 1, open_transactions)
    assert now(run).status == "running"
    settle([run.id])
    assert (now(run).status, sends(sandbox, run)) == ("cancelled", [])
    check()


def open_transactions():
    """Sessions that hold a transaction open and do nothing in it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name, query FROM pg_stat_activity"
            " WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
            " AND clock_timestamp() - state_change > interval '200 milliseconds'"
        )
        return cursor.fetchall()
