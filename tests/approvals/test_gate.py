"""What the engine may do, judged from the newest request (cases A01, A05, A07, A14, P02, P15)."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.utils import timezone

from approvals import policies
from approvals.gate import ApprovalGate
from approvals.models import Approval, Permit
from approvals.statuses import ApprovalStatus
from durable import gate as durable_gate
from durable.errors import ApprovalExpired, ApprovalRejected, NotApproved
from durable.gate import Allowed, Ask, Pending, Refused
from durable.models import InboxItem
from tests.approvals.miniature import make_engine, passed, rows_of, say, set_clocks

pytestmark = pytest.mark.django_db


def approve(approval):
    return say(approval, "approve")


def tighten(policy, monkeypatch, **changed):
    monkeypatch.setattr(policies, "_policies", {policy.name: replace(policy, **changed)})


def test_the_engine_asks_this_gate():
    assert isinstance(durable_gate.current(), ApprovalGate)


def test_what_no_policy_asks_about_needs_nothing(engine):
    engine.parameters["amount"] = "5000.00"
    assert engine.gate.lookup(engine.action) is None


def test_a_first_request_stores_what_the_person_will_see(engine, policy):
    verdict = engine.verdict()
    assert isinstance(verdict, Ask)
    rows_of(verdict.statement)
    approval = Approval.objects.get()
    assert approval.id == verdict.approval_id
    assert approval.decide_by == verdict.decide_by
    assert approval.status == "pending"
    assert approval.version == 1
    assert json.loads(approval.parameters) == engine.parameters
    assert approval.policy == "large-charge"
    assert policies.read(approval.policy_snapshot) == policies.combine([policy])
    assert approval.requested_by == "user:oscar"
    assert approval.task_key == engine.record.task_key
    assert abs(approval.decide_by - timezone.now() - policy.decide_within) < timedelta(minutes=1)
    assert verdict.facts == {
        "approval": str(approval.id),
        "operation_id": str(engine.record.operation_id),
        "title": approval.title,
        "digest": approval.digest,
        "policy": "large-charge",
        "decide_by": approval.decide_by.isoformat(),
    }


def test_somebody_who_was_asked_is_not_asked_again(engine, pending):
    verdict = engine.verdict()
    assert verdict == Pending(approval_id=pending.id, decide_by=pending.decide_by)


def test_an_approved_action_starts_once(engine, pending):
    approve(pending)
    verdict = engine.verdict()
    assert isinstance(verdict, Allowed)
    assert verdict.approval_version == 1
    engine.reserve(verdict)
    permit = Permit.objects.get()
    assert (permit.status, permit.operation_id) == ("reserved", engine.record.operation_id)
    assert permit.epoch == engine.run.lease.epoch
    with pytest.raises(DatabaseError, match="the approval is used"):
        engine.reserve(verdict)


@pytest.mark.parametrize("status", ["pending", "approved", "rejected", "expired"])
@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"amount": "1.00 USD"}, ["amount"]),
        ({"target": "evil"}, ["target"]),
        ({"effect": "charge"}, []),
        ({"parameters": {"amount": "9999.00"}}, None),
        ({"tenant": "other"}, ["tenant"]),
        ({"target": "acme-gmb\u0048"}, ["target"]),
    ],
)
def test_an_answer_about_one_action_is_no_answer_about_another(engine, status, changed, names):
    """A01: one field at a time; a rejection of X does not refuse Y either."""
    approval = engine.ask()
    if status in ("approved", "rejected"):
        say(approval, {"approved": "approve", "rejected": "reject"}[status])
    if status == "expired":
        set_clocks(approval, decide_by=passed())
    verdict = engine.verdict(**changed)
    if names == []:
        assert not isinstance(verdict, Ask)
        return
    assert isinstance(verdict, Ask)
    assert verdict.facts["instead_of"] == str(approval.id)
    if names:
        assert verdict.facts["changed"] == names
    rows_of(verdict.statement)
    approval.refresh_from_db()
    assert approval.status == ("superseded" if status in ("pending", "approved") else status)
    assert not Permit.objects.exists()
    newest = Approval.objects.get(id=verdict.approval_id)
    assert (newest.status, newest.version) == ("pending", 2)


def test_changed_parameters_are_named_by_their_paths(engine, pending):
    engine.parameters |= {"amount": "9999.00", "lines": [{"sku": "X"}]}
    verdict = engine.verdict()
    assert verdict.facts["changed"] == ["amount", "parameters.amount", "parameters.lines"]


def test_a_second_step_with_equal_parameters_needs_its_own_approval(engine, pending):
    """P15."""
    from tests.factories import make_record

    approve(pending)
    engine.record = make_record(engine.run, "prepared", task_key="4")
    assert isinstance(engine.verdict(), Ask)


def test_a_fork_needs_its_own_approval(engine, pending):
    """A14, P15: the same operation taken over by another run."""
    approve(pending)
    fork = make_engine()
    fork.record = engine.record
    verdict = fork.verdict()
    assert isinstance(verdict, Ask)
    rows_of(verdict.statement)
    assert Approval.objects.get(id=verdict.approval_id).version == 2
    pending.refresh_from_db()
    assert pending.status == "superseded"


def test_a_rejection_reaches_the_workflow_with_who_and_why(engine, pending):
    say(pending, "reject", reason="wrong customer")
    verdict = engine.verdict()
    assert isinstance(verdict, Refused)
    assert isinstance(verdict.error, ApprovalRejected)
    assert (verdict.error.by, verdict.error.reason) == ("user:alice", "wrong customer")
    assert str(verdict.error) == "Rejected by user:alice: wrong customer"


def test_silence_is_refused_when_the_time_is_over_without_any_sweeper(engine, pending):
    """A07: the look itself ends it, and tells the run once."""
    set_clocks(pending, decide_by=passed())
    verdict = engine.verdict()
    assert isinstance(verdict, Refused)
    assert isinstance(verdict.error, ApprovalExpired)
    engine.verdict()
    item = InboxItem.objects.get()
    assert (item.type, item.run_id) == ("approval.decided", engine.run.id)
    assert json.loads(item.payload)["status"] == "expired"


def test_an_approval_that_was_not_used_in_time_is_asked_anew(engine, pending):
    """P15: a resend after the approval lapsed."""
    approve(pending)
    set_clocks(pending, valid_until=passed())
    verdict = engine.verdict()
    assert isinstance(verdict, Ask)
    assert verdict.facts["changed"] == []
    pending.refresh_from_db()
    assert pending.status == "expired"


def test_an_approval_that_lapses_between_look_and_start_is_refused_by_the_start(engine, pending):
    """A07, P10: the check that counts is in the transaction that starts."""
    approve(pending)
    verdict = engine.verdict()
    set_clocks(pending, valid_until=passed())
    with pytest.raises(DatabaseError, match="not used in time"):
        engine.reserve(verdict)
    assert not Permit.objects.exists()


@pytest.mark.parametrize("status", ["void", "superseded"])
def test_what_was_withdrawn_is_asked_anew(engine, pending, status):
    Approval.objects.update(status=status)
    assert isinstance(engine.verdict(), Ask)


def test_a_stricter_policy_asks_anew_and_says_so(engine, pending, policy, monkeypatch):
    approve(pending)
    tighten(policy, monkeypatch, version=2, decide_within=timedelta(hours=1))
    verdict = engine.verdict()
    assert isinstance(verdict, Ask)
    assert verdict.facts["changed"] == ["policy"]
    rows_of(verdict.statement)
    assert isinstance(engine.verdict(), Pending)


def test_a_worker_of_the_older_release_accepts_the_newer_policy(
    engine, policy, pending, monkeypatch
):
    tighten(policy, monkeypatch, version=2)
    newer = engine.ask()
    tighten(policy, monkeypatch, version=1)
    assert engine.verdict() == Pending(approval_id=newer.id, decide_by=newer.decide_by)


def test_a_released_permit_lets_the_same_action_try_again(engine, pending):
    approve(pending)
    engine.start()
    engine.settle("failed")
    assert Permit.objects.get().status == "released"
    engine.start()
    assert Permit.objects.get().status == "reserved"


@pytest.mark.parametrize("outcome", ["unknown", "succeeded"])
def test_a_used_approval_never_allows_again(engine, pending, outcome):
    """A14: what may have happened is never blindly repeated."""
    approve(pending)
    engine.start()
    engine.settle(outcome)
    set_clocks(pending, valid_until=passed())
    with pytest.raises(NotApproved, match="already used"):
        engine.verdict()
    pending.refresh_from_db()
    assert pending.status == "approved"


def test_a_run_that_ends_voids_what_is_open_and_keeps_what_is_used(engine, pending):
    """A11."""
    engine.close()
    pending.refresh_from_db()
    assert pending.status == "void"
    other = make_engine()
    approve(other.ask())
    other.start()
    other.close()
    assert Approval.objects.get(run=other.run).status == "approved"


def test_an_approval_voided_before_the_start_does_not_start(engine, pending):
    """P02, A11."""
    approve(pending)
    verdict = engine.verdict()
    engine.close()
    with pytest.raises(DatabaseError, match="the approval is void"):
        engine.reserve(verdict)


def row(engine, **damage):
    return rows_of(engine.gate.lookup(engine.action))[0] | damage


@pytest.mark.parametrize(
    "damage",
    [
        {"status": "Approved"},
        {"status": "yes"},
        {"status": None},
        {"version": None},
        {"version": "1"},
        {"digest": None},
        {"run_id": "x"},
        {"decided_at": None},
        {"decided_by": None},
        {"policy_snapshot": "{}"},
        {"policy_snapshot": None},
        {"policy_snapshot": "not JSON"},
        {"permit_status": "maybe"},
        {"at": None},
    ],
)
def test_an_odd_row_is_never_an_approval(engine, pending, damage):
    """A05."""
    approve(pending)
    assert isinstance(engine.gate.judge(engine.action, [row(engine)]), Allowed)
    with pytest.raises(NotApproved):
        engine.gate.judge(engine.action, [row(engine, **damage)])


def test_a_row_with_a_missing_field_is_never_an_approval(engine, pending):
    """A05."""
    approve(pending)
    whole = row(engine)
    for name in whole:
        part = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(NotApproved):
            engine.gate.judge(engine.action, [part])


@pytest.mark.parametrize("count", [0, 2])
def test_any_other_number_of_answers_is_never_an_approval(engine, pending, count):
    approve(pending)
    with pytest.raises(NotApproved):
        engine.gate.judge(engine.action, [row(engine)] * count)


def test_a_row_whose_shown_fields_are_not_its_digest_is_asked_anew(engine, pending):
    approve(pending)
    odd = row(engine, parameters='{"amount":"1.00"}')
    assert isinstance(engine.gate.judge(engine.action, [odd]), Ask)


def test_every_status_has_an_answer(engine, pending):
    for status in ApprovalStatus:
        odd = row(engine, status=status, decided_at=timezone.now(), decided_by="a", reason="")
        assert engine.gate.judge(engine.action, [odd])
