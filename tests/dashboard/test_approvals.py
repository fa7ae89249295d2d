import html
import re
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from approvals.models import Decision, Refusal
from tests import factories
from tests.dashboard.test_text import HIDING

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(oscar):
    """ACME's charge, which oscar requested."""
    return factories.make_approval(factories.make_run("waiting", waiting_for="approval"))


def address(approval):
    return f"/approvals/{approval.id}/"


def words_of(page):
    """What a person reads: the page without its tags."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.text))


def decision(approval, choice, reason="", **other):
    return {
        "choice": choice,
        "reason": reason,
        "version": approval.version,
        "digest": approval.digest,
        **other,
    }


# What is shown -----------------------------------------------------------------------------------


def test_every_bound_name_and_value_is_on_the_page(browse, alice):
    """A27: a card that hides arguments is worse than none."""
    parameters = {
        "amount": "5210.00",
        "lines": [{"sku": "A-7", "count": 3}],
        "express": True,
        "note": None,
        "quantity": 12,
    }
    run = factories.make_run("waiting")
    approval = factories.make_approval(run, parameters=parameters)
    said = words_of(browse(alice).get(address(approval)))
    for name in parameters:
        assert name in said
    for value in ("5210.00", '"sku": "A-7"', '"count": 3', "true", "null", "12"):
        assert value in said


def test_the_facts_that_a_decision_rests_on_are_on_the_page(browse, alice, asked):
    said = words_of(browse(alice).get(address(asked)))
    for fact in (
        asked.title,
        asked.key,
        "Charges over 5,000 need one approver who did not request them",
        "Requested by oscar",
        "nothing was sent yet",
        asked.digest[:16],
    ):
        assert fact in said


@pytest.mark.parametrize("character", HIDING.values(), ids=HIDING.keys())
def test_hidden_characters_are_shown_in_every_field(browse, alice, character):
    """D02"""
    nasty = f"pay{character}ME"
    run = factories.make_run("waiting", goal=nasty, started_by=f"user:{nasty}")
    record = factories.make_record(run, "prepared", key=nasty, operation=nasty)
    approval = factories.make_approval(
        run,
        record=record,
        parameters={nasty: nasty},
        title=nasty,
        target=nasty,
        amount=nasty,
        policy=nasty,
    )
    page = browse(alice).get(address(approval))
    assert nasty not in page.text
    escape = f"U+{ord(character):04X}"
    # title, goal, requester, action, target, amount, name, value, key, policy
    assert page.text.count(f">{escape}</span>") >= 10
    assert "Hidden or misleading characters" in page.text


def test_markup_in_a_value_is_text(browse, alice):
    """D02, A21, A22"""
    nasty = "<img src=x onerror=alert(1)><b hx-get='/x'>{{7*7}}"
    run = factories.make_run("waiting", goal=nasty)
    approval = factories.make_approval(run, title=nasty, target=nasty, parameters={nasty: nasty})
    page = browse(alice).get(address(approval))
    assert "<img" not in page.text
    assert "<b hx-get" not in page.text
    assert "{{7*7}}" in page.text


def test_a_long_value_says_so_and_is_one_click_away(browse, alice):
    long = "first " + "x" * 2000 + " last"
    approval = factories.make_approval(
        factories.make_run("waiting"), parameters={"a": "1", "body": long}
    )
    client = browse(alice)
    page = client.get(address(approval))
    assert "600 of 2,011 characters shown" in page.text
    full = f"{address(approval)}values/1/"
    assert full in page.text
    assert long in words_of(client.get(full))
    assert client.get(f"{address(approval)}values/2/").status_code == 404


def test_the_page_stays_within_the_budget(browse, alice, asked, within_budget):
    client = browse(alice)
    with within_budget():
        client.get(address(asked))


# Deciding ----------------------------------------------------------------------------------------


def test_an_approver_approves_exactly_what_they_saw(browse, alice, asked, post):
    client = browse(alice)
    answer = post(client, address(asked), **decision(asked, "approve"))
    assert answer.status_code == 302
    receipt = words_of(client.get(address(asked)))
    assert "Approved by alice" in receipt
    assert asked.digest in receipt
    assert Decision.objects.get().choice == "approve"


def test_a_decision_without_leaving_the_page_shows_the_receipt(browse, alice, asked, post):
    answer = post(browse(alice), address(asked), htmx=True, **decision(asked, "reject", "No"))
    assert answer.status_code == 200
    assert "<html" not in answer.text
    assert "Rejected by alice" in words_of(answer)


def test_a_rejection_needs_a_reason_and_the_form_keeps_what_was_typed(browse, alice, asked, post):
    answer = post(browse(alice), address(asked), **decision(asked, "reject"))
    assert answer.status_code == 422
    assert 'value="reject" required checked' in answer.text
    assert "was not recorded" in answer.text
    assert not Decision.objects.exists()


def test_who_comes_second_is_told_who_was_first(browse, alice, bob, asked, post):
    """A06, D01"""
    post(browse(alice), address(asked), **decision(asked, "reject", "duplicate invoice"))
    late = post(browse(bob), address(asked), **decision(asked, "approve"))
    assert late.status_code == 409
    said = words_of(late)
    assert "Rejected by alice" in said
    assert "duplicate invoice" in said
    assert "Your choice was not recorded" in said
    assert Decision.objects.count() == 1


@pytest.mark.parametrize("choice", ["", "APPROVE", "approve ", "yes", "1", "true", "null"])
def test_only_the_two_exact_words_decide(browse, alice, asked, post, choice):
    """A05"""
    answer = post(browse(alice), address(asked), **decision(asked, choice))
    assert answer.status_code == 422
    assert not Decision.objects.exists()


def test_a_choice_sent_twice_is_none(browse, alice, asked, post):
    fields = decision(asked, ["approve", "reject"], "both")
    assert post(browse(alice), address(asked), **fields).status_code == 422
    assert not Decision.objects.exists()


def test_an_old_page_cannot_approve_what_has_changed(browse, alice, asked, post):
    """A15"""
    old = decision(asked, "approve", digest="0" * 64)
    answer = post(browse(alice), address(asked), **old)
    assert answer.status_code == 409
    assert "The action has changed" in answer.text
    assert not Decision.objects.exists()


def test_one_s_own_request_cannot_be_approved(browse, alice, post):
    """A12"""
    approval = factories.make_approval(factories.make_run("waiting", started_by="user:alice"))
    client = browse(alice)
    assert "somebody else has to approve it" in client.get(address(approval)).text
    answer = post(client, address(approval), **decision(approval, "approve"))
    assert answer.status_code == 403
    assert not Decision.objects.exists()


def test_one_s_own_request_can_be_rejected_and_the_form_offers_only_that(browse, alice, post):
    approval = factories.make_approval(factories.make_run("waiting", started_by="user:alice"))
    client = browse(alice)
    page = client.get(address(approval))
    assert 'value="reject"' in page.text
    assert 'value="approve"' not in page.text
    post(client, address(approval), **decision(approval, "reject", "ordered twice"))
    assert Decision.objects.get().choice == "reject"


def test_too_late_is_said_and_nothing_sounds_like_success(browse, alice, post):
    """D01, A07"""
    run = factories.make_run("waiting")
    approval = factories.make_approval(run, decide_by=timezone.now() - timedelta(seconds=1))
    client = browse(alice)
    shown = client.get(address(approval))
    assert 'name="choice"' not in shown.text
    answer = post(client, address(approval), **decision(approval, "approve"))
    assert answer.status_code == 409
    said = words_of(answer)
    assert "expired" in said.lower()
    assert "Approved" not in said


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("void", "cancelled or has ended"),
        ("superseded", "The action has changed since"),
        ("expired", "Nobody decided before"),
    ],
)
def test_what_can_no_longer_be_decided_says_why(browse, alice, post, status, said):
    """D01, A11"""
    approval = factories.make_approval(factories.make_run("waiting"), status)
    client = browse(alice)
    page = client.get(address(approval))
    assert said in words_of(page)
    assert 'name="choice"' not in page.text
    answer = post(client, address(approval), **decision(approval, "approve"))
    assert answer.status_code == 409
    assert "was not recorded" in answer.text
    assert not Decision.objects.exists()
    assert Refusal.objects.count() == 1


# Who, and by which door --------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?action=approve", "?choice=approve&reason=x"])
@pytest.mark.parametrize("method", ["get", "head", "options", "put", "delete"])
def test_nothing_but_a_post_decides(browse, alice, asked, method, query):
    """A13: a link scanner clicks first."""
    client = browse(alice)
    answer = getattr(client, method)(address(asked) + query)
    assert answer.status_code in (200, 403, 405)
    asked.refresh_from_db()
    assert asked.status == "pending"
    assert not Decision.objects.exists()


def test_a_post_without_the_token_is_refused(browse, alice, asked):
    """A13"""
    answer = browse(alice).post(address(asked), decision(asked, "approve"))
    assert answer.status_code == 403
    assert "Nothing was changed" in answer.text
    assert not Decision.objects.exists()


def test_a_viewer_may_look_but_not_decide(browse, vera, asked, post):
    """A12"""
    client = browse(vera)
    page = client.get(address(asked))
    assert page.status_code == 200
    assert 'name="choice"' not in page.text
    answer = post(client, address(asked), **decision(asked, "approve"))
    assert answer.status_code == 403
    assert not Decision.objects.exists()


def test_a_right_that_was_taken_away_does_not_count(browse, alice, asked, post):
    """A12"""
    client = browse(alice)
    client.get(address(asked))
    alice.user_permissions.remove(*alice.user_permissions.filter(codename="decide_approval"))
    answer = post(client, address(asked), **decision(asked, "approve"))
    assert answer.status_code == 403
    assert not Decision.objects.exists()


def test_the_body_cannot_name_the_decider(browse, alice, asked, post):
    """A12"""
    fields = decision(asked, "approve", decided_by="bob", person="bob", actor="user:bob")
    post(browse(alice), address(asked), **fields)
    assert Decision.objects.get().actor == "user:alice"


def test_a_stranger_gets_403_and_a_foreign_tenant_404(browse, alice, sam, asked, post):
    assert browse(sam).get(address(asked)).status_code == 403
    foreign = factories.make_approval(factories.make_run("waiting", tenant="other"))
    client = browse(alice)
    answer = client.get(address(foreign))
    assert answer.status_code == 404
    assert foreign.title not in answer.text
    assert post(client, "/", address(foreign), **decision(foreign, "approve")).status_code == 404
    assert client.get(f"/approvals/{uuid.uuid4()}/").status_code == 404


def test_a_session_that_ended_between_page_and_post_decides_nothing(client, asked):
    """A12"""
    answer = client.post(address(asked), decision(asked, "approve"))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/")
    assert not Decision.objects.exists()
