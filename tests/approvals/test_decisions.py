"""One decision, by somebody who may, about what they saw, in time (A05, A06, A07, A11, A12)."""

import json
from datetime import timedelta
from unittest.mock import ANY

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection, transaction

from approvals import decisions, errors
from approvals.models import Approval, Decision, Permit, Refusal
from durable import inbox
from durable.models import InboxItem
from tests.approvals.miniature import (
    at_once,
    make_engine,
    make_person,
    passed,
    rows_of,
    say,
    set_clocks,
    waits_for_a_lock,
    waits_until_locked,
)

pytestmark = pytest.mark.django_db


def decide(approval, person, choice="approve", **changed):
    return decisions.decide(
        approval.id,
        **{
            "person": person,
            "choice": choice,
            "reason": "because",
            "version": approval.version,
            "digest": approval.digest,
            "surface": "web",
            **changed,
        },
    )


def refused(error, approval, person, choice="approve", **changed):
    """Decide, expect this refusal, and nothing but its record."""
    before = Approval.objects.get(id=approval.id).status, Decision.objects.count()
    with pytest.raises(error) as caught:
        decide(approval, person, choice, **changed)
    refusal = Refusal.objects.latest("id")
    assert refusal.approval_id == approval.id
    assert refusal.code == error.code
    assert (Approval.objects.get(id=approval.id).status, Decision.objects.count()) == before
    return caught.value


def test_an_approval_is_recorded_with_who_what_and_until_when(pending, alice, policy):
    decision = decide(pending, alice, surface="api", reason="  checked  ")
    pending.refresh_from_db()
    assert (decision.person, decision.actor, decision.choice) == (alice, "user:alice", "approve")
    assert (decision.reason, decision.surface) == ("checked", "api")
    assert (decision.version, decision.digest) == (pending.version, pending.digest)
    assert pending.status == "approved"
    assert pending.decided_at == decision.at
    assert pending.valid_until == decision.at + policy.valid_for
    assert not Refusal.objects.exists()


def test_a_decision_leaves_one_fact_for_its_run_in_the_same_transaction(pending, alice):
    """A09: what wakes the run commits with the decision."""
    decide(pending, alice, "reject", reason="wrong amount")
    item = InboxItem.objects.get()
    assert (item.run_id, item.type, item.actor) == (
        pending.run_id,
        "approval.decided",
        "user:alice",
    )
    assert item.task_key == pending.task_key
    assert json.loads(item.payload) == {
        "approval": str(pending.id),
        "operation_id": str(pending.operation_id),
        "status": "rejected",
        "by": "user:alice",
        "reason": "wrong amount",
    }
    pending.refresh_from_db()
    assert (pending.status, pending.valid_until) == ("rejected", None)


def test_a_decision_whose_fact_cannot_be_stored_was_never_made(pending, alice, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError

    monkeypatch.setattr(inbox, "put", fail)
    with pytest.raises(RuntimeError):
        decide(pending, alice)
    pending.refresh_from_db()
    assert pending.status == "pending"
    assert not Decision.objects.exists()


@pytest.mark.parametrize(
    "word",
    ["", "APPROVE", "approve ", "yes", "approved", "true", None, 1, True, ["approve"], {}, "\x00"],
)
def test_only_the_two_words_decide(pending, alice, word):
    """A05."""
    refused(errors.InvalidChoice, pending, alice, word)
    pending.refresh_from_db()
    assert pending.status == "pending"
    assert not InboxItem.objects.exists()


def test_what_was_sent_instead_of_a_choice_is_kept_in_a_form_that_can_be_stored(pending, alice):
    refused(errors.InvalidChoice, pending, alice, "appr\x00ve" + "!" * 500)
    refusal = Refusal.objects.get()
    assert refusal.choice.startswith("'appr\\x00ve!!")
    assert len(refusal.choice) == 100
    assert (refusal.person, refusal.actor, refusal.surface) == (alice, "user:alice", "web")


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("reject", ""),
        ("reject", "  \n"),
        ("approve", "a\x00b"),
        ("approve", "\ud800"),
        ("reject", "x" * 2001),
        ("approve", None),
        ("approve", 5),
    ],
)
def test_a_reason_that_cannot_stand_is_refused_and_named(pending, alice, choice, reason):
    error = refused(errors.InvalidReason, pending, alice, choice, reason=reason)
    assert error.field == "reason"


def test_an_approval_needs_no_reason(pending, alice):
    assert decide(pending, alice, reason="").reason == ""


def test_the_longest_reason_is_stored_whole(pending, alice):
    assert decide(pending, alice, reason="x" * 2000).reason == "x" * 2000


# Who -----------------------------------------------------------------------------------------


def test_a_viewer_may_not_decide(pending, vera):
    """A12: a right to look is no right to decide."""
    refused(errors.NotPermitted, pending, vera)
    refused(errors.NotPermitted, pending, vera, "reject")


def test_a_right_that_was_taken_away_after_the_page_loaded_does_not_count(pending, alice):
    """A12."""
    assert alice.has_perm("approvals.decide_approval")  # and now Django has cached it
    alice.user_permissions.clear()
    refused(errors.NotPermitted, pending, alice)


def test_somebody_inactive_or_deleted_may_not_decide(pending, alice, bob):
    type(alice).objects.filter(id=alice.id).update(is_active=False)
    refused(errors.NotPermitted, pending, alice)
    type(bob).objects.filter(id=bob.id).delete()
    refused(errors.NotPermitted, pending, bob)
    refused(errors.NotPermitted, pending, AnonymousUser())
    assert [r.person for r in Refusal.objects.order_by("id")] == [alice, None, None]


def test_another_tenant_learns_nothing(pending, alice):
    """A12: not found, and the try is kept where it was tried."""
    error = refused(errors.ApprovalNotFound, pending, alice, tenant="elsewhere")
    assert str(error) == "There is no such request for approval."


def test_a_request_that_does_not_exist_is_not_found(pending, alice):
    missing = Approval(id=pending.run_id, version=1, digest="")
    with pytest.raises(errors.ApprovalNotFound):
        decide(missing, alice)
    assert not Refusal.objects.exists()


def test_the_requester_may_reject_but_not_approve(engine, pending, oscar):
    """A12."""
    oscar.user_permissions.set(make_person("zoe", "approver").user_permissions.all())
    refused(errors.SelfApproval, pending, oscar)
    assert decide(pending, oscar, "reject").choice == "reject"


def test_a_superuser_does_not_approve_what_they_asked_for(policy):
    root = make_person("root", "stranger")
    type(root).objects.filter(id=root.id).update(is_superuser=True)
    approval = make_engine(started_by="user:root").ask()
    refused(errors.SelfApproval, approval, root)


@pytest.mark.parametrize(
    "requester", ["", "user:", "user:ghost", "token:abc", "unknown", "system:"]
)
def test_an_unknown_requester_is_approved_by_nobody(policy, alice, requester):
    """A12: whoever was renamed or deleted since might be the approver."""
    approval = make_engine(started_by=requester).ask()
    refused(errors.RequesterUnknown, approval, alice)
    assert decide(approval, alice, "reject").choice == "reject"


def test_a_requester_who_was_renamed_does_not_become_somebody_else(pending, oscar):
    oscar.user_permissions.set(make_person("zoe", "approver").user_permissions.all())
    type(oscar).objects.filter(id=oscar.id).update(username="oskar")
    refused(errors.RequesterUnknown, pending, oscar)


def test_what_a_system_asked_for_anybody_with_the_right_approves(policy, alice):
    approval = make_engine(started_by="system:nightly").ask()
    assert decide(approval, alice).choice == "approve"


# What ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [{"version": 2}, {"version": "1"}, {"digest": "0" * 64}])
def test_a_decision_about_something_else_than_what_was_seen_is_refused(pending, alice, seen):
    refused(errors.ChangedMeanwhile, pending, alice, **seen)
    refused(errors.ChangedMeanwhile, pending, alice, "reject", **seen)


def test_a_page_of_the_older_version_decides_nothing(engine, pending, alice):
    """A15: the action changed while the page was open."""
    engine.parameters["amount"] = "9999.00"
    newer = engine.ask()
    pending.refresh_from_db()
    assert pending.status == "superseded"
    refused(errors.ChangedMeanwhile, pending, alice)
    assert decide(newer, alice).choice == "approve"


def test_what_does_not_match_its_own_digest_can_only_be_rejected(pending, alice):
    set_clocks(pending, target="evil")
    refused(errors.Unreadable, pending, alice)
    assert decide(pending, alice, "reject")


def test_terms_that_cannot_be_read_can_only_be_rejected(pending, alice):
    set_clocks(pending, policy_snapshot={"votes": 0})
    refused(errors.Unreadable, pending, alice)
    assert decide(pending, alice, "reject")


# When ----------------------------------------------------------------------------------------


def test_too_late_is_too_late_without_any_sweeper_and_is_told_to_the_run_once(pending, alice):
    """A07."""
    set_clocks(pending, decide_by=passed())
    with pytest.raises(errors.TooLate):
        decide(pending, alice)
    with pytest.raises(errors.TooLate):
        decide(pending, alice, "reject", reason="I would never have agreed")
    assert decisions.expire_overdue() == 0
    pending.refresh_from_db()
    assert (pending.status, pending.decided_at) == ("expired", None)
    assert json.loads(InboxItem.objects.get().payload) == {
        "approval": str(pending.id),
        "by": "system:approvals",
        "operation_id": str(pending.operation_id),
        "reason": "Nobody decided in time",
        "status": "expired",
    }
    late = Refusal.objects.latest("id")
    assert (late.choice, late.reason, late.code) == (
        "reject",
        "I would never have agreed",
        "TOO_LATE",
    )


def test_a_request_of_a_run_that_ended_is_withdrawn(engine, pending, alice):
    """A11."""
    engine.close()
    error = refused(errors.Withdrawn, pending, alice)
    assert "nothing left to decide" in str(error)


def test_the_second_person_is_told_who_decided_what_and_when(pending, alice, bob):
    """A06."""
    decision = decide(pending, alice, "reject")
    error = refused(errors.AlreadyDecided, pending, bob)
    assert error.decision == decision
    assert str(error).startswith(f"user:alice rejected this at {decision.at:%Y-%m-%d %H:%M:%S} UTC")


def test_the_same_person_repeating_themselves_gets_the_recorded_decision(engine, pending, alice):
    """A06: a double click, a lost reply, and long after the approval was used and lapsed."""
    decision = decide(pending, alice)
    assert decide(pending, alice) == decision
    engine.start()
    assert decide(pending, alice) == decision
    assert InboxItem.objects.count() == 1
    assert not Refusal.objects.exists()


def test_the_same_person_changing_their_mind_is_refused(pending, alice):
    decide(pending, alice)
    refused(errors.AlreadyDecided, pending, alice, "reject")


@pytest.mark.django_db(transaction=True)
def test_deciding_inside_another_transaction_is_refused(pending, alice):
    """A refusal could not survive the other transaction's rollback."""
    with transaction.atomic(), pytest.raises(RuntimeError):
        decide(pending, alice)


# The sweep -----------------------------------------------------------------------------------


def test_the_sweep_ends_what_is_overdue_once_and_nothing_else(engine, pending, alice):
    overdue, approved = make_engine(), make_engine()
    late = set_clocks(overdue.ask(), decide_by=passed())
    used = approved.ask()
    say(used, "approve")
    set_clocks(used, decide_by=passed())
    InboxItem.objects.all().delete()
    assert decisions.expire_overdue() == 1
    assert decisions.expire_overdue() == 0
    assert InboxItem.objects.get().run_id == overdue.run.id
    statuses = {a.id: a.status for a in Approval.objects.all()}
    assert statuses == {late.id: "expired", pending.id: "pending", used.id: "approved"}


def test_one_bad_row_does_not_stop_the_sweep(engine, pending, monkeypatch, caplog):
    other = set_clocks(make_engine().ask(), decide_by=passed())
    set_clocks(pending, decide_by=passed() - timedelta(minutes=1))
    expire = decisions._expire

    def fail_once(approval_id):
        if approval_id == pending.id:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
        return expire(approval_id)

    monkeypatch.setattr(decisions, "_expire", fail_once)
    assert decisions.expire_overdue() == 1
    other.refresh_from_db()
    assert other.status == "expired"
    assert str(pending.id) in caplog.text


# Races ---------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_of_ten_who_approve_and_ten_who_reject_at_one_instant_one_decides(policy, oscar):
    """A06."""
    people = [make_person(f"person-{n}", "approver") for n in range(20)]
    for _ in range(5):
        approval = make_engine().ask()
        InboxItem.objects.all().delete()
        before = Refusal.objects.count()

        def act(n, approval=approval):
            return lambda: decide(approval, people[n], "reject" if n % 2 else "approve")

        outcomes = at_once(*(act(n) for n in range(20)))
        decision = Decision.objects.get(approval=approval)
        assert [o for o in outcomes if isinstance(o, Decision)] == [decision]
        lost = [o for o in outcomes if isinstance(o, errors.AlreadyDecided)]
        assert len(lost) == 19
        assert {o.decision for o in lost} == {decision}
        approval.refresh_from_db()
        assert approval.status == {"approve": "approved", "reject": "rejected"}[decision.choice]
        assert InboxItem.objects.count() == 1
        assert Refusal.objects.count() - before == 19


@pytest.mark.django_db(transaction=True)
def test_one_person_clicking_ten_times_at_once_decides_once(policy, oscar, alice):
    """A06."""
    approval = make_engine().ask()
    outcomes = at_once(*[lambda: decide(approval, alice)] * 10)
    assert outcomes == [Decision.objects.get()] * 10
    assert InboxItem.objects.count() == 1
    assert not Refusal.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_approval_that_expires_while_the_decision_waits_for_its_lock_is_refused(
    policy, oscar, alice
):
    """P10: now() would still be the time before the wait."""
    approval = make_engine().ask()

    def hold_until_it_expired():
        with transaction.atomic():
            list(Approval.objects.select_for_update(no_key=True).filter(id=approval.id))
            waits_for_a_lock()
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL session_replication_role = replica")
                cursor.execute(
                    "UPDATE approvals_approval SET decide_by = clock_timestamp() WHERE id = %s",
                    [approval.id],
                )

    def decide_once_it_is_held():
        waits_until_locked(approval)
        return decide(approval, alice)

    _, outcome = at_once(hold_until_it_expired, decide_once_it_is_held)
    assert isinstance(outcome, errors.TooLate)
    approval.refresh_from_db()
    assert approval.status == "expired"
    assert InboxItem.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_deciding_and_cancelling_at_once_always_leave_a_consistent_pair(policy, oscar, alice):
    """A11, P09: whichever comes first, and without a deadlock."""
    for _ in range(20):
        engine = make_engine()
        approval = engine.ask()
        outcome, closed = at_once(lambda a=approval: decide(a, alice), lambda e=engine: e.close())
        assert closed is None
        approval.refresh_from_db()
        assert approval.status == "void"  # decided first: approved, then void; or void at once
        decided = Decision.objects.filter(approval=approval).count()
        assert (decided == 1) is isinstance(outcome, Decision)
        assert decided == 1 or isinstance(outcome, errors.Withdrawn)


@pytest.mark.django_db(transaction=True)
def test_rejecting_and_starting_at_once_never_do_both(policy, oscar, alice, bob):
    """P09: a start under an approval that is being taken away; a decision waits for no run."""
    for _ in range(10):
        engine = make_engine()
        approval = engine.ask()
        say(approval, "approve")
        verdict = engine.verdict()
        start = lambda e=engine, v=verdict: e.reserve(v)  # noqa: E731
        started, closed = at_once(start, lambda e=engine: e.close())
        assert closed is None
        approval.refresh_from_db()
        used = Permit.objects.filter(approval=approval, status="reserved").exists()
        assert (approval.status, used, started) in [
            ("approved", True, None),
            ("void", False, ANY),
        ]


@pytest.mark.django_db(transaction=True)
def test_sweeping_twice_at_once_tells_each_run_once(policy, oscar):
    """A07, P10."""
    for _ in range(20):
        set_clocks(make_engine().ask(), decide_by=passed())
    swept = at_once(*[decisions.expire_overdue] * 4)
    assert sum(swept) + decisions.expire_overdue() == 20
    assert InboxItem.objects.count() == 20


@pytest.mark.django_db(transaction=True)
def test_a_sweep_does_not_wait_for_somebody_who_is_deciding(policy, oscar):
    approval = set_clocks(make_engine().ask(), decide_by=passed())
    with transaction.atomic():
        list(Approval.objects.select_for_update(no_key=True).filter(id=approval.id))
        assert at_once(decisions.expire_overdue) == [0]


@pytest.mark.django_db(transaction=True)
def test_a_refused_try_outlives_its_error(policy, oscar, vera):
    approval = make_engine().ask()
    with pytest.raises(errors.NotPermitted):
        decide(approval, vera)
    assert at_once(lambda: Refusal.objects.get().code) == ["NOT_PERMITTED"]


@pytest.mark.django_db(transaction=True)
def test_a_decision_does_not_wait_for_a_transaction_that_holds_the_run(policy, oscar, alice):
    """P09: it locks the approval alone; the executor holds lease and run."""
    engine = make_engine()
    approval = engine.ask()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM durable_lease WHERE run_id = %s FOR NO KEY UPDATE", [engine.run.id]
        )
        cursor.execute("SELECT 1 FROM durable_run WHERE id = %s FOR NO KEY UPDATE", [engine.run.id])

        def decide_before_the_nudge():
            with connection.cursor() as mine:
                mine.execute("SET lock_timeout = '1s'")
            return decide(approval, alice)

        [outcome] = at_once(decide_before_the_nudge)
    assert isinstance(outcome, Decision)
    assert rows_of(engine.gate.lookup(engine.action))[0]["status"] == "approved"
