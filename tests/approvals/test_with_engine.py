"""The gate under the real engine: what a person decided is what happens outside, and once."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

import durable
from approvals import decisions, errors, policies
from approvals.models import Approval, Permit
from approvals.policies import Policy
from durable import engine, journal, runs
from durable.models import Event, IdempotencyRecord, Run
from tests.approvals.miniature import make_person, passed, say, set_clocks

pytestmark = pytest.mark.django_db(transaction=True)

SENT: list[str] = []
FAILURES: list[Exception] = []


@durable.effect(
    name="wire",
    key="{order_id}:wire",
    target="{customer_id}",
    amount="{amount} {currency}",
    title="Wire {amount} {currency} to {customer_id}",
    timeout=1,
    retry=durable.Retry(initial=0),
)
def wire(call: Any, order_id: str, customer_id: str, amount: str, currency: str) -> Any:
    if FAILURES:
        raise FAILURES.pop()
    SENT.append(amount)
    return {"wired": amount}


@durable.workflow(name="wiring", version="1")
def wiring(order: Any) -> Any:
    try:
        return wire(order["id"], "acme-gmbh", order["amount"], "USD")
    except (durable.ApprovalRejected, durable.ApprovalExpired) as refused:
        return {"refused": type(refused).__name__, "reason": getattr(refused, "reason", "")}


@pytest.fixture(autouse=True)
def large_wires_ask(monkeypatch):
    SENT.clear()
    FAILURES.clear()
    monkeypatch.setattr(policies, "_policies", {})
    policies.register(
        Policy(
            name="large-wire",
            effect="wire",
            when=lambda parameters: float(parameters["amount"]) > 5000,
            decide_within=timedelta(hours=1),
            valid_for=timedelta(minutes=5),
            sentence="Wires over 5,000 need another person",
        )
    )
    make_person("oscar", "operator")
    yield
    journal.journal().close()  # or the test database could not be removed


def start(amount="5210.00", order="A-1"):
    order = {"id": order, "amount": amount}
    run = runs.start("wiring", order, actor="user:oscar").run
    engine.advance(run.id)
    return Run.objects.get(id=run.id)


def go_on(run):
    engine.advance(run.id)
    return Run.objects.get(id=run.id)


def types(run):
    return list(Event.objects.filter(run_id=run.id).values_list("type", flat=True))


def test_a_small_action_needs_nobody():
    run = start("12.00")
    assert (run.status, SENT) == ("succeeded", ["12.00"])
    assert not Approval.objects.exists()


def test_a_large_action_waits_for_a_person_and_then_happens_once():
    run = start()
    assert (run.status, run.waiting_for, SENT) == ("waiting", "approval", [])
    approval = Approval.objects.get()
    assert approval.title == "Wire 5210.00 USD to acme-gmbh"
    assert approval.operation_id == IdempotencyRecord.objects.get().operation_id
    say(approval, "approve")
    run = go_on(run)
    assert (run.status, SENT) == ("succeeded", ["5210.00"])
    permit = Permit.objects.get()
    assert (permit.status, permit.approval_id) == ("consumed", approval.id)
    assert IdempotencyRecord.objects.get().approval_version == 1
    assert types(run).count("approval.requested") == 1
    assert types(run).count("approval.decided") == 1
    go_on(run)
    assert SENT == ["5210.00"]


def test_a_rejection_reaches_the_workflow():
    run = start()
    say(Approval.objects.get(), "reject", reason="wrong customer")
    run = go_on(run)
    assert json.loads(run.output) == {"refused": "ApprovalRejected", "reason": "wrong customer"}
    assert SENT == []


def test_silence_is_no_yes_and_the_log_says_so_once():
    """A07."""
    run = start()
    set_clocks(Approval.objects.get(), decide_by=passed())
    Run.objects.filter(id=run.id).update(wake_at=passed())
    run = go_on(run)
    assert json.loads(run.output)["refused"] == "ApprovalExpired"
    assert (SENT, decisions.expire_overdue()) == ([], 0)
    assert types(run).count("approval.decided") == 1


def test_a_declined_action_tries_again_under_the_same_approval():
    run = start()
    say(Approval.objects.get(), "approve")
    FAILURES.append(durable.Retryable("busy"))
    run = go_on(go_on(run))
    assert (run.status, SENT) == ("succeeded", ["5210.00"])
    assert Permit.objects.get().status == "consumed"
    assert Approval.objects.count() == 1


def test_an_unknown_outcome_keeps_the_permit_and_repeats_nothing():
    """A14."""
    run = start()
    say(Approval.objects.get(), "approve")
    FAILURES.append(TimeoutError("no answer"))
    run = go_on(run)
    assert (run.status, SENT) == ("blocked", [])
    assert Permit.objects.get().status == "reserved"
    assert IdempotencyRecord.objects.get().status == "unknown"


def test_a_cancelled_run_withdraws_its_question():
    """A11."""
    run = start()
    approval = Approval.objects.get()
    runs.cancel(run.id, actor="user:oscar", reason="duplicate")
    run = go_on(run)
    assert run.status == "cancelled"
    with pytest.raises(errors.Withdrawn):
        say(approval, "approve")
    approval.refresh_from_db()
    assert (approval.status, SENT) == ("void", [])


def test_a_missing_approval_is_no_approval():
    """A05: the row is gone, and the log says that somebody was asked."""
    run = start()
    say(Approval.objects.get(), "approve")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("DELETE FROM approvals_decision")
        cursor.execute("DELETE FROM approvals_approval")
    run = go_on(run)
    assert (run.status, run.code, SENT) == ("blocked", "APPROVAL_MISSING", [])
    assert not Approval.objects.exists()


def test_an_odd_word_in_the_row_blocks_the_run():
    """A05."""
    run = start()
    say(Approval.objects.get(), "approve")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("ALTER TABLE approvals_approval DROP CONSTRAINT approval_status_known")
        cursor.execute("UPDATE approvals_approval SET status = 'Approved'")
    try:
        run = go_on(run)
        assert (run.status, run.code, SENT) == ("blocked", "APPROVAL_MISSING", [])
    finally:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute("UPDATE approvals_approval SET status = 'void'")
            cursor.execute(
                "ALTER TABLE approvals_approval ADD CONSTRAINT approval_status_known CHECK"
                " (status IN ('pending', 'approved', 'rejected', 'expired', 'void', 'superseded'))"
            )
