"""What pages show: who needs to act first, nothing dead as open, always the same few queries."""

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from approvals import errors, people, queries
from approvals.models import Approval
from tests.approvals.miniature import make_engine, make_person, passed, say, set_clocks

pytestmark = pytest.mark.django_db


def ids(page):
    return [approval.id for approval in page.approvals]


def inbox(person, view="needs_me", **more):
    return queries.inbox(person, tenant="default", view=view, **more)


@pytest.fixture
def three(engine):
    """Three requests, the most urgent last."""
    made = [make_engine().ask() for _ in range(3)]
    now = timezone.now()
    return [
        set_clocks(approval, decide_by=now + timedelta(hours=9 - n))
        for n, approval in enumerate(made)
    ]


def test_the_most_urgent_request_comes_first(three, alice):
    assert ids(inbox(alice)) == [approval.id for approval in reversed(three)]


def test_what_i_asked_for_waits_for_others(three, oscar):
    assert inbox(oscar).approvals == []
    oscar.user_permissions.set(make_person("zoe", "approver").user_permissions.all())
    asker = type(oscar).objects.get(id=oscar.id)
    assert inbox(asker).approvals == []
    assert len(inbox(asker, "waiting_for_others").approvals) == 3


def test_a_policy_that_lets_the_requester_agree_shows_them_their_own(three, oscar):
    oscar.user_permissions.set(make_person("zoe", "approver").user_permissions.all())
    asker = type(oscar).objects.get(id=oscar.id)
    loose = set_clocks(
        three[0], policy_snapshot={**three[0].policy_snapshot, "no_self_approval": False}
    )
    assert ids(inbox(asker)) == [loose.id]
    assert queries.why_not(asker, loose) == ""


def test_who_may_only_look_sees_what_waits_for_others(three, vera):
    assert inbox(vera).approvals == []
    assert len(inbox(vera, "waiting_for_others").approvals) == 3


def test_overdue_requests_are_never_listed_as_open_though_nothing_swept(three, alice):
    """A07."""
    late = set_clocks(three[0], decide_by=passed())
    assert late.id not in ids(inbox(alice))
    assert late.id not in ids(inbox(alice, "waiting_for_others"))
    assert ids(inbox(alice, "decided")) == [late.id]
    assert queries.counts(alice, tenant="default") == queries.Counts(
        needs_me=2, waiting_for_others=0
    )


def test_what_was_decided_is_listed_newest_first_with_its_decision(three, alice):
    say(three[0], "approve")
    say(three[2], "reject")
    page = inbox(alice, "decided")
    assert ids(page) == [three[2].id, three[0].id]
    assert [d.choice for a in page.approvals for d in a.decisions.all()] == ["reject", "approve"]
    assert ids(inbox(alice)) == [three[1].id]


def test_another_tenants_requests_are_not_shown(three, alice):
    assert queries.inbox(alice, tenant="elsewhere").approvals == []
    with pytest.raises(errors.ApprovalNotFound):
        queries.for_page(three[0].id, "elsewhere")


@pytest.mark.parametrize("view", ["needs_me", "decided"])
def test_pages_follow_each_other_without_gap_or_repeat(engine, alice, monkeypatch, view):
    """Also where several share one moment."""
    monkeypatch.setattr(queries, "PAGE_SIZE", 2)
    moment = timezone.now() + timedelta(hours=1)
    made = [set_clocks(make_engine().ask(), decide_by=moment) for _ in range(5)]
    for approval in made:
        set_clocks(approval, requested_at=moment)
        if view == "decided":
            say(approval, "approve")
    seen: list[uuid.UUID] = []
    after, pages = "", 0
    while after or not pages:
        page = inbox(alice, view, after=after)
        seen, after, pages = seen + ids(page), page.after, pages + 1
    assert pages == 3
    assert sorted(seen) == sorted(approval.id for approval in made)


@pytest.mark.parametrize("after", ["x", "~", "2026-11-29~", "2026-11-29T00:00:00~" + "0" * 32])
def test_a_page_that_does_not_exist_is_refused(alice, after):
    with pytest.raises(errors.InvalidCursor):
        inbox(alice, after=after)


def test_the_inbox_costs_two_queries_however_long_it_is(three, alice, django_assert_num_queries):
    assert people.may_decide(alice)  # the person's rights, which a page has read already
    for view in ("needs_me", "waiting_for_others", "decided"):
        say(make_engine().ask(), "approve")
        with django_assert_num_queries(2 if view != "waiting_for_others" else 1):
            page = inbox(alice, view)
            assert all(a.run.goal and a.decisions.all() is not None for a in page.approvals)
    with django_assert_num_queries(2):
        queries.counts(alice, tenant="default")


def test_an_approvals_page_costs_three_queries(
    engine, pending, alice, bob, django_assert_num_queries
):
    say(pending, "approve")
    engine.start()
    for _ in range(queries.MOST_REFUSALS + 1):
        with pytest.raises(errors.AlreadyDecided):
            say(pending, "reject", by="bob")
    with django_assert_num_queries(3):
        approval = queries.for_page(pending.id, "default")
        assert approval.run.goal
        assert approval.permit.status == "reserved"
        assert [d.actor for d in approval.decisions.all()] == ["user:alice"]
        assert len(approval.refusals.all()) == queries.MOST_REFUSALS
    people.may_decide(alice)
    with django_assert_num_queries(0):
        assert queries.why_not(alice, approval).startswith("user:alice approved this at ")


def test_why_not_costs_two_queries(pending, alice, django_assert_num_queries):
    approval = queries.for_page(pending.id, "default")
    people.may_decide(alice)
    with django_assert_num_queries(2):
        assert queries.why_not(alice, approval) == ""


def test_a_page_says_why_this_person_may_not_approve(engine, pending, alice, vera, oscar):
    oscar.user_permissions.set(alice.user_permissions.all())
    asker = type(oscar).objects.get(id=oscar.id)
    assert queries.why_not(vera, pending) == str(errors.NotPermitted())
    assert queries.why_not(asker, pending) == str(errors.SelfApproval())
    assert queries.why_not(alice, pending) == ""
    set_clocks(pending, requested_by="user:ghost")
    assert queries.why_not(alice, pending) == str(errors.RequesterUnknown())
    set_clocks(pending, decide_by=passed())
    assert queries.why_not(alice, pending) == str(errors.TooLate())
    set_clocks(pending, status="void")
    assert queries.why_not(alice, pending) == str(errors.Withdrawn())


def test_a_newer_request_is_found_and_its_changes_can_be_named(engine, pending):
    engine.parameters["amount"] = "9999.00"
    newer = engine.ask()
    assert queries.newest(pending) == newer
    assert queries.newest(newer) == newer
    assert queries.previous(newer) == pending
    assert queries.previous(pending) is None


def test_a_runs_requests_come_in_the_order_they_were_asked(
    engine, pending, django_assert_num_queries
):
    engine.parameters["amount"] = "9999.00"
    newer = engine.ask()
    make_engine().ask()
    with django_assert_num_queries(2):
        found = queries.of_run(engine.run.id)
        assert [list(a.decisions.all()) for a in found] == [[], []]
    assert found == [pending, newer]


def test_every_view_together_shows_each_request_once(three, alice, oscar):
    say(three[0], "approve")
    set_clocks(three[1], requested_by="user:alice")
    shown = [
        *ids(inbox(alice)),
        *ids(inbox(alice, "waiting_for_others")),
        *ids(inbox(alice, "decided")),
    ]
    assert sorted(shown) == sorted(Approval.objects.values_list("id", flat=True))
