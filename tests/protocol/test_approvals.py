"""What a person approved is what is sent, once; anything else is not approved (A01, A05, A06)."""

import threading
import unicodedata
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection

from approvals import policies
from approvals.errors import AlreadyDecided, SelfApproval, TooLate
from approvals.models import Approval, Decision, Permit
from approvals.policies import Policy
from durable import ApprovalExpired, ApprovalRejected, canonical, engine, runs, task, workflow
from durable.context import Context
from durable.models import InboxItem
from tests import shop
from tests.approvals.miniature import say
from tests.crashes import crash
from tests.people import make_person
from tests.scenario import (
    Elsewhere,
    at_once,
    begin,
    events,
    execute,
    fresh,
    go,
    output,
    past_the_triggers,
    payloads,
    record,
    somebody_waits_for_a_lock,
    take_over,
    types,
    wake,
)
from tests.shop import pay, service

pytestmark = [
    pytest.mark.usefixtures("checked"),
    pytest.mark.usefixtures("large_payments_ask"),
]


@workflow(version="1")
def large(order):
    try:
        return pay(order["id"], order["amount"], order["customer"])["what"]
    except (ApprovalRejected, ApprovalExpired) as refused:
        return type(refused).__name__


def order(**changed):
    return {"id": "A-1", "amount": "6000", "customer": "caf\u00e9", **changed}


def asked(run):
    return Approval.objects.get(run=run, status="pending")


def approved(flow=large, input=None):
    """A run whose payment was approved and has not started."""
    run = begin(flow, input or order())
    say(asked(run), "approve")
    return run


# Bound to exactly this (A01) ---------------------------------------------------------------------


def test_what_was_approved_unchanged_happens_once():
    """A01."""
    run = approved()
    assert output(go(run)) == "6000"
    assert service.done == [("A-1:pay", "6000")]
    assert Permit.objects.get().status == "consumed"


FACTS = {"id": "A-1", "amount": "6000", "customer": "caf\u00e9"}


@task()
def facts(name):
    """Read again after every crash, as a body that is not deterministic would."""
    return FACTS[name]


def sends_something_else(**changed):
    """The code that builds the parameters is another one when the approved call is made."""

    def body(given):
        values = {**given, **changed}
        return pay(values["id"], values["amount"], values["customer"])["what"]

    return workflow(name="large", version="1")(body)


def without_checking_inputs(monkeypatch):
    """Take away the first guard, the replay check, to see that the digest is a second one."""

    def replay(self, path, name, fingerprint):
        self.used.add(path)
        return self.history.of(path)

    monkeypatch.setattr(Context, "replay", replay)


CHANGES = [
    ({"amount": "6001"}, "parameters.amount"),
    ({"customer": "eve"}, "target"),
    ({"customer": unicodedata.normalize("NFD", "caf\u00e9")}, "target"),
]


@pytest.mark.parametrize(("changed", "named"), CHANGES)
def test_code_that_builds_other_parameters_is_stopped_before_the_gate(changed, named):
    """A01: amount, target, one character's Unicode form."""
    run = approved()
    sends_something_else(**changed)
    run = go(run)
    assert (run.status, run.code, service.calls) == ("blocked", "NONDETERMINISM", [])
    assert not Permit.objects.exists()


@pytest.mark.parametrize(("changed", "named"), CHANGES)
def test_an_approval_covers_no_other_parameters_even_where_replay_is_fooled(
    changed, named, monkeypatch
):
    """A01: no call, not consumed, the difference is named, and a new approval is asked for."""
    run = approved()
    sends_something_else(**changed)
    without_checking_inputs(monkeypatch)
    run = go(run)
    assert (run.status, run.waiting_for, service.calls) == ("waiting", "approval", [])
    assert not Permit.objects.exists()
    again = payloads(run, "approval.requested")[1]
    assert named in again["changed"]
    assert Approval.objects.get(id=again["instead_of"]).status == "superseded"
    say(asked(run), "approve")
    assert output(go(run)) == changed.get("amount", "6000")
    assert len(service.calls) == 1


def test_an_approval_covers_no_other_tenant():
    """A01."""
    run = approved()
    past_the_triggers("UPDATE durable_run SET tenant = 'elsewhere' WHERE id = %s", run.id)
    run = go(run)
    assert (run.status, run.code, service.calls) == ("blocked", "APPROVAL_MISSING", [])
    assert not Permit.objects.exists()


def test_an_approval_covers_no_other_action(monkeypatch):
    """A01: the effect's name is part of what was approved."""
    run = approved()
    renamed = shop.pay.definition
    object.__setattr__(renamed, "name", "pay_more")
    without_checking_inputs(monkeypatch)
    monkeypatch.setitem(
        policies._policies,
        "other",
        Policy(
            name="other",
            effect="pay_more",
            when=lambda parameters: True,
            decide_within=timedelta(hours=1),
            valid_for=timedelta(minutes=5),
            sentence="All of them",
        ),
    )
    try:
        run = go(run)
    finally:
        object.__setattr__(renamed, "name", "pay")
    assert (run.status, service.calls) == ("waiting", [])
    assert "action" in payloads(run, "approval.requested")[1]["changed"]


def test_a_tampered_row_is_not_the_approval_of_what_it_now_says():
    """A01: the stored digest covers the stored facts."""
    run = approved()
    past_the_triggers("UPDATE approvals_approval SET amount = '1 USD'")
    run = go(run)
    assert (run.status, service.calls) == ("waiting", [])


def test_a_stricter_policy_in_force_at_the_start_asks_again(monkeypatch):
    """Invariant 7: every move to running re-checks the policy in force."""
    run = approved()
    monkeypatch.setitem(
        policies._policies,
        "stricter",
        Policy(
            name="stricter",
            effect="pay",
            when=lambda parameters: True,
            decide_within=timedelta(hours=1),
            valid_for=timedelta(minutes=5),
            sentence="All payments",
        ),
    )
    run = go(run)
    assert (run.waiting_for, service.calls) == ("approval", [])
    assert "policy" in payloads(run, "approval.requested")[1]["changed"]


def test_a_second_call_with_equal_parameters_needs_its_own_approval():
    """P15, A14."""

    @workflow(version="1")
    def twice(order):
        return [pay("A-1", "6000")["id"], pay("A-2", "6000")["id"]]

    run = approved(twice)
    run = go(run)
    assert (run.waiting_for, service.calls) == ("approval", ["A-1:pay"])
    say(asked(run), "approve")
    assert output(go(run)) == ["r1", "r2"]
    assert Permit.objects.filter(status="consumed").count() == 2


def test_a_resend_after_the_approval_lapsed_is_asked_for_again(clock):
    """P15: the first try was refused by the service; by the second, five minutes are over."""
    run = approved()
    service.then("busy")
    run = go(run)
    assert run.waiting_for == "retry"
    clock.forward(301)
    run = go(run)
    assert (run.waiting_for, service.calls) == ("approval", ["A-1:pay"])
    say(asked(run), "approve")
    assert output(go(run)) == "6000"
    assert Approval.objects.filter(run=run).count() == 2


def test_an_approval_that_was_not_used_in_time_is_not_used(clock):
    run = approved()
    clock.forward(301)
    run = go(run)
    assert (run.waiting_for, service.calls) == ("approval", [])


def test_a_crash_between_approval_and_call_uses_the_approval_once():
    """A14 at K1 and K1b."""
    run = approved()
    with crash(at="durable_effect_start", when="before"):
        go(run)
    assert not Permit.objects.exists()
    with crash(at="durable_effect_start", when="after"):
        take_over(run)
    assert (Permit.objects.get().status, service.calls) == ("reserved", [])
    service.do("A-1:pay", "6000")  # the call lands
    assert output(take_over(run)) == "6000"
    assert Permit.objects.get().status == "consumed"
    assert len(service.done) == 1


# Missing, odd or late is not a yes (A05) ---------------------------------------------------------


def test_a_run_whose_approval_row_is_missing_blocks_and_asks_again_only_when_resumed():
    """A05."""
    run = approved()
    past_the_triggers("DELETE FROM approvals_decision; DELETE FROM approvals_approval")
    run = go(run)
    assert (run.status, run.code, service.calls) == ("blocked", "APPROVAL_MISSING", [])
    runs.resume(run.id, actor="user:oscar", reason="restored by mistake, ask again")
    run = go(run)
    assert (run.waiting_for, service.calls) == ("approval", [])
    say(asked(run), "approve")
    assert output(go(run)) == "6000"


@pytest.mark.parametrize("word", ["APPROVED", "approved ", "yes", "true", "1", ""])
def test_an_unknown_word_in_the_row_blocks_the_run(word):
    """A05."""
    run = approved()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE approvals_approval DROP CONSTRAINT approval_status_known")
    try:
        past_the_triggers("UPDATE approvals_approval SET status = %s", word)
        run = go(run)
        assert (run.status, run.code, service.calls) == ("blocked", "APPROVAL_MISSING", [])
    finally:
        past_the_triggers("UPDATE approvals_approval SET status = 'void'")
        execute(
            "ALTER TABLE approvals_approval ADD CONSTRAINT approval_status_known CHECK (status IN"
            " ('pending', 'approved', 'rejected', 'expired', 'void', 'superseded'))"
        )


def test_a_decision_in_the_log_alone_approves_nothing():
    """A05: the approval's row decides, not what somebody left in the inbox."""
    run = begin(large, order())
    InboxItem.objects.create(
        run_id=run.id,
        type="approval.decided",
        task_key="1",
        actor="user:mallory",
        payload=canonical.dumps({"approval": str(asked(run).id), "status": "approved"}),
    )
    run = wake(run)
    assert (run.waiting_for, service.calls) == ("approval", [])
    assert "approval.decided" in types(run)


def test_nobody_deciding_in_time_is_a_no(clock):
    """A05, A07: without any sweeper."""
    run = begin(large, order())
    approval = asked(run)
    clock.forward(3601)
    with pytest.raises(TooLate):
        say(approval, "approve")
    assert output(go(run)) == "ApprovalExpired"
    assert service.calls == []
    assert types(fresh(run)).count("approval.decided") == 1


def test_an_approval_that_expires_while_the_decision_waits_for_a_lock_is_refused(clock):
    """P10."""
    run = begin(large, order())
    approval = asked(run)
    make_person("alice", "approver")
    with Elsewhere() as elsewhere:
        elsewhere.execute(
            "SELECT 1 FROM approvals_approval WHERE id = %s FOR NO KEY UPDATE", approval.id
        )

        def let_time_pass():
            somebody_waits_for_a_lock()
            clock.forward(3601)
            elsewhere.commit()

        decided, _ = at_once(partial(say, approval, "approve"), let_time_pass)
    assert isinstance(decided, TooLate)
    assert not Decision.objects.exists()
    assert output(go(run)) == "ApprovalExpired"


# Two people at once (A06) ------------------------------------------------------------------------


def test_of_many_who_decide_at_one_instant_one_decides_and_the_run_follows():
    """A06: four rounds of ten against ten."""
    for name in range(20):
        make_person(f"person-{name}", "approver")
    for round in range(4):
        service.clear()
        run = begin(large, order(id=f"A-{round}"))
        approval = asked(run)
        votes = [
            partial(say, approval, "approve" if n % 2 else "reject", by=f"person-{n}")
            for n in range(20)
        ]
        results = at_once(*votes)
        winners = [result for result in results if isinstance(result, Decision)]
        assert len(winners) == 1, results
        assert all(isinstance(r, Decision | AlreadyDecided) for r in results), results
        run = go(run)
        decided = payloads(run, "approval.decided")
        assert [fact["by"] for fact in decided] == [winners[0].actor]
        expected = "6000" if winners[0].choice == "approve" else "ApprovalRejected"
        assert output(run) == expected
        assert len(service.calls) == (1 if expected == "6000" else 0)


def test_two_workers_that_meet_an_approved_action_do_it_once():
    """A14."""
    run = approved()
    at_once(*[partial(engine.advance, run.id) for _ in range(6)])
    assert output(fresh(run)) == "6000"
    assert len(service.calls) == 1
    assert len(events(run, "lease.acquired")) == 2


def test_looking_at_a_request_any_number_of_times_decides_nothing():
    """A13, the engine's side: only the one function that records a person's vote moves a run."""
    run = begin(large, order())
    for _ in range(3):
        run = wake(run)
    assert (run.waiting_for, service.calls) == ("approval", [])
    assert types(run).count("approval.requested") == 1
    assert Approval.objects.count() == 1


def test_the_person_who_started_the_run_cannot_approve_it():
    """A12."""
    run = begin(large, order())
    oscar = make_person("olga", "approver")
    past_the_triggers("UPDATE durable_run SET started_by = 'user:olga'")
    past_the_triggers("UPDATE approvals_approval SET requested_by = 'user:olga'")
    with pytest.raises(SelfApproval):
        say(asked(run), "approve", by=oscar.get_username())
    assert wake(run).waiting_for == "approval"


def test_a_rejection_reaches_the_body_with_its_reason_and_holds_after_a_crash():
    """A03, P13."""
    seen = []

    @workflow(version="1")
    def reads_the_reason(order):
        try:
            pay("A-1", "6000")
        except ApprovalRejected as error:
            seen.append((error.by, error.reason, str(error)))
            return facts("amount")

    run = begin(reads_the_reason, order())
    say(asked(run), "reject", reason="wrong customer")
    with crash(at="task.completed", when="before"):
        go(run)
    assert output(take_over(run)) == "6000"
    assert seen == [("user:alice", "wrong customer", "Rejected by user:alice: wrong customer")] * 2
    assert (record(run).status, service.calls) == ("void", [])


def test_a_cancelled_run_can_no_longer_be_approved_into_life():
    """A11."""
    run = approved()
    runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
    assert go(run).status == "cancelled"
    assert (service.calls, Permit.objects.count()) == ([], 0)


def test_a_start_that_finds_the_approval_withdrawn_while_it_waited_for_the_lease_sends_nothing(
    monkeypatch,
):
    """P02: after a lock wait the row is read again, by a later statement."""
    run = begin(large, order())
    approval = asked(run)
    say(approval, "approve")
    tripped = []
    original = policies.asking

    def asking(effect, parameters):
        tripped.append(effect)
        if len(tripped) == 2:  # the last look before the transaction that starts it
            elsewhere.execute(
                "SELECT 1 FROM durable_lease WHERE run_id = %s FOR NO KEY UPDATE", run.id
            )
            withdrawing.start()
        return original(effect, parameters)

    def withdraw():
        somebody_waits_for_a_lock()
        elsewhere.execute(
            "UPDATE approvals_approval SET status = 'void' WHERE id = %s", approval.id
        )
        elsewhere.commit()
        connection.close()

    withdrawing = threading.Thread(target=withdraw)
    monkeypatch.setattr(policies, "asking", asking)
    with Elsewhere() as elsewhere:
        run = go(run)
        withdrawing.join()
    assert (run.waiting_for, service.calls) == ("approval", [])
    assert not Permit.objects.exists()
    assert "external.requested" not in types(run)
