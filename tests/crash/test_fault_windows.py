"""The six places where a tool call goes wrong: each tried with real workers and real kills."""

import pytest

from approvals.models import Approval, Permit
from durable import canonical, runs
from durable.tasks import advance
from tests.processes import happened, settle, stays, wait_until
from tests.scenarios.looking import (
    applied,
    approve,
    clock,
    due,
    lease,
    now,
    output,
    record,
    sends,
    start,
    stored,
    types,
)

pytestmark = [pytest.mark.crash, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("point", ["K1", "K1b"])
def test_a_payment_whose_worker_died_before_sending_is_made_once_afterwards(
    workers, sandbox, check, point
):
    """The article's first window: exit before the tool ran."""
    killed = workers.crash_at(point, "P-1:pay")
    run = start("pays", "P-1")
    happened(killed)
    assert sends(sandbox, run) == []
    settle([run.id])
    assert now(run).status == "succeeded"
    assert applied(sandbox, run) == [1]
    # Where the start was stored nobody can know: the service is asked before anything is sent.
    asked = bool(sandbox.ledger(method="GET", key="P-1:pay"))
    assert asked == (point == "K1b")
    check()


def test_a_payment_that_happened_and_was_not_stored_is_looked_up_and_not_repeated(
    workers, sandbox, check
):
    """The second window: exit between the outside's success and the stored result."""
    killed = workers.crash_at("K2", "P-1:pay")
    run = start("pays", "P-1")
    happened(killed)
    assert applied(sandbox, run) == [1]
    settle([run.id])
    assert now(run).status == "succeeded"
    assert len(sends(sandbox, run)) == 1
    assert output(run)["id"] == record(run).external_resource_id
    recovery = types(run)[types(run).index("lease.lost") :]
    assert recovery[:4] == ["lease.lost", "lease.acquired", "external.unknown", "run.resumed"]
    assert "external.reconciled" in recovery
    check()


def test_twenty_wake_ups_at_two_workers_are_one_claim_and_one_payment(workers, sandbox, check):
    """The third window: one operation, two executors (also L06)."""
    sandbox.switch("payments", "slow", operation="charge", seconds=1)
    run = start("pays", "P-1")
    for _ in range(20):
        advance.delay(str(run.id))
    wait_until(lambda: now(run).status == "running", 10, lambda: now(run).status)
    for _ in range(20):
        advance.delay(str(run.id))
    settle([run.id])
    head = lease(run)
    for _ in range(20):
        advance.delay(str(run.id))
    stays(
        lambda: lease(run).last_seq == head.last_seq,
        1,
        lambda: "a finished run's log grew",
    )
    assert (now(run).status, head.epoch) == ("succeeded", 1)
    assert len(sends(sandbox, run)) == 1
    check()


def test_two_runs_that_mean_the_same_payment_make_it_once(workers, sandbox, check):
    """The third window, from two runs: the second waits for the first and takes its answer."""
    sandbox.switch("payments", "slow", operation="charge", seconds=1)
    both = [start("pays", "P-1"), start("pays", "P-1")]
    settle([run.id for run in both])
    assert [now(run).status for run in both] == ["succeeded", "succeeded"]
    assert now(both[0]).output == now(both[1]).output
    assert len(sandbox.ledger(method="POST")) == 1
    check()


def test_the_same_key_with_another_amount_is_refused_and_never_sent(workers, sandbox, check):
    """The fourth window: same key, other parameters."""
    first = start("pays", "P-1", "10.00")
    settle([first.id])
    second = start("pays", "P-1", "99.00")
    settle([second.id])
    assert now(second).status == "failed"
    assert stored(now(second).error)["kind"].endswith(":KeyReused")
    assert sends(sandbox, second) == []
    assert record(first).sent_request == canonical.dumps({"amount": "10.00", "order": "P-1"})
    check()


def test_what_was_approved_does_not_cover_what_the_code_wants_afterwards(
    workers, sandbox, check, alice, oscar
):
    """The fifth window: the target parameters changed after a person confirmed (A01)."""
    amount = workers.ground.notes / "P-1.amount"
    amount.write_text("6000.00")
    run = start("pays_what_the_file_says", "P-1")
    settle([run.id])
    assert now(run).waiting_for == "approval"
    amount.write_text("9000.00")
    approve(Approval.objects.get(), alice)
    settle([run.id])
    assert (now(run).status, now(run).code) == ("blocked", "NONDETERMINISM")
    assert sandbox.ledger() == []
    assert not Permit.objects.exists()
    # The code of that day again: the approval still stands for exactly what was shown.
    amount.write_text("6000.00")
    runs.resume(run.id, actor="user:oscar", reason="the old code is back")
    settle([run.id])
    assert now(run).status == "succeeded"
    assert applied(sandbox, run) == [1]
    assert stored(record(run).sent_request)["amount"] == "6000.00"
    check()


def test_a_run_cancelled_while_it_waits_for_its_retry_sends_nothing_more(workers, sandbox, check):
    """The sixth window: cancel during retry (E12)."""
    sandbox.switch("payments", "rate-limit", operation="charge", retry_after="3")
    run = start("pays", "P-1")
    wait_until(lambda: now(run).waiting_for == "retry", 10, lambda: types(run))
    retry_at = due(run)
    sandbox.switch("payments", "ok", operation="charge")
    runs.cancel(run.id, actor="user:oscar", reason="not wanted any more")
    settle([run.id])
    assert now(run).status == "cancelled"
    head = lease(run).last_seq
    # Past the time at which the retry would have been.
    wait_until(lambda: clock() > retry_at, 10, lambda: "the time stands still")
    stays(lambda: lease(run).last_seq == head, 1, lambda: types(run))
    assert [entry["status"] for entry in sends(sandbox, run)] == [429]
    check()
