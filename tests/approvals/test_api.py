"""Approvals over the API: people decide, once, about exactly what they saw."""

import json
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection
from django.utils import timezone

from approvals.models import Decision, Refusal
from durable.models import InboxItem
from tests.approvals.miniature import at_once, make_engine, set_clocks
from tests.clients import V1, anonymous, paths_of, problem_of, session_of, token_of
from tests.people import make_person

pytestmark = pytest.mark.django_db


def vote(approval, choice="approve", **changed):
    """What a person sends who has looked at the approval."""
    sent = {
        "choice": choice,
        "reason": "Not this month." if choice == "reject" else "",
        "version": approval.version,
        "digest": approval.digest,
    }
    return {**sent, **changed}


def address_of(approval):
    return f"approvals/{approval.id}/decide/"


def untouched(approval):
    approval.refresh_from_db()
    return approval.status == "pending" and not Decision.objects.exists()


# Looking -----------------------------------------------------------------------------------------


def test_an_approver_sees_exactly_what_will_be_sent(pending, alice):
    shown = session_of(alice).get(f"approvals/{pending.id}/").json()
    assert shown["parameters"] == json.loads(pending.parameters)
    assert (shown["digest"], shown["version"]) == (pending.digest, 1)
    assert (shown["requested_by"], shown["why_not"]) == ("user:oscar", "")


def test_each_view_lists_what_it_says(pending, alice, oscar):
    for person, expected in ((alice, [1, 0, 0]), (oscar, [0, 1, 0])):
        views = ("needs_me", "waiting_for_others", "decided")
        found = [session_of(person).get("approvals/", view=view).json() for view in views]
        assert [len(page["results"]) for page in found] == expected
    assert session_of(alice).get("approvals/").json()["results"][0]["id"] == str(pending.id)


def test_a_long_list_is_walked_page_by_page(policy, oscar, alice, monkeypatch):
    monkeypatch.setattr("approvals.queries.PAGE_SIZE", 2)
    made = {str(make_engine().ask().id) for _ in range(5)}
    caller, found = session_of(alice), []
    page = caller.get("approvals/").json()
    while True:
        found += [row["id"] for row in page["results"]]
        if page["next"] is None:
            break
        page = caller.client.get(page["next"]).json()
    assert len(found) == 5
    assert set(found) == made


@pytest.mark.parametrize(
    "query",
    [
        {"view": "all"},
        {"cursor": "x"},
        {"cursor": "x~y"},
        {"cursor": "2026-11-29T12:00:00~01932f2a-0000-7000-8000-000000000001"},
        {"cursor": "0001-01-01T00:00:00+14:00~01932f2a-0000-7000-8000-00000000000x"},
        {"cursor": "a\x00b"},
        {"action": "approve"},
        {"limit": "5"},
    ],
)
def test_a_parameter_without_meaning_is_refused_by_name(pending, alice, query):
    assert paths_of(problem_of(session_of(alice).get("approvals/", **query), 400)) == list(query)


def test_times_at_the_edge_of_the_calendar_are_only_a_place_in_the_list(pending, alice):
    for at in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00"):
        cursor = f"{at}~01932f2a-0000-7000-8000-000000000001"
        for view in ("needs_me", "decided"):
            answer = session_of(alice).get("approvals/", cursor=cursor, view=view)
            assert answer.status_code in (200, 400)


# Deciding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "status"), [("approve", "approved"), ("reject", "rejected")])
def test_a_person_decides(pending, alice, choice, status):
    answer = session_of(alice).post(address_of(pending), vote(pending, choice))
    assert (answer.status_code, answer.json()["status"]) == (200, status)
    (decision,) = answer.json()["decisions"]
    assert (decision["actor"], decision["choice"]) == ("user:alice", choice)
    assert decision["surface"] == "api"
    assert InboxItem.objects.get().actor == "user:alice"


def test_a_decision_repeated_by_its_person_is_the_same_one(pending, alice):
    """A06: a double click, a lost reply."""
    caller = session_of(alice)
    first = caller.post(address_of(pending), vote(pending))
    again = caller.post(address_of(pending), vote(pending))
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["decisions"] == again.json()["decisions"]
    assert Decision.objects.count() == 1


def test_the_loser_is_told_what_was_decided(pending, alice, bob):
    """A06."""
    session_of(alice).post(address_of(pending), vote(pending))
    for caller, choice in ((session_of(bob), "approve"), (session_of(alice), "reject")):
        answer = caller.post(address_of(pending), vote(pending, choice))
        recorded = problem_of(answer, 409, "ALREADY_DECIDED")["recorded"]
        assert (recorded["actor"], recorded["choice"]) == ("user:alice", "approve")
        assert recorded["at"]
    assert Decision.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_twenty_deciders_at_once_one_wins(policy):
    """A06."""
    make_person("oscar", "operator")
    people = [make_person(f"approver-{n}", "approver") for n in range(20)]
    pending = make_engine().ask()
    votes = [vote(pending, "approve" if n % 2 else "reject") for n in range(20)]
    calls = [
        partial(session_of(person).post, address_of(pending), sent)
        for person, sent in zip(people, votes, strict=True)
    ]
    answers = at_once(*calls)
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 19
    decision = Decision.objects.get()
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["recorded"]["actor"] == decision.actor
    assert InboxItem.objects.count() == 1


@pytest.mark.parametrize(
    "sent",
    [
        {},
        None,
        {"choice": None},
        {"choice": ""},
        {"choice": "APPROVE "},
        {"choice": "Approve"},
        {"choice": "approve\u200b"},
        {"choice": "yes"},
        {"choice": 1},
        {"choice": True},
        {"choice": ["approve"]},
        {"approved": "false"},
        {"approved": True},
        {"decision": "approve"},
        {"choice": "approve", "decided_by": "user:bob"},
        {"choice": "approve", "actor": "user:bob"},
        {"choice": "approve", "surface": "web"},
        {"choice": "approve", "by_token": False},
        {"choice": "approve", "tenant": "default"},
        {"choice": "approve", "version": "1"},
        {"choice": "approve", "version": True},
        {"choice": "approve", "version": None},
        {"choice": "approve", "digest": None},
        {"choice": "approve", "reason": None},
        {"choice": "approve", "reason": 0},
        {"choice": "approve", "reason": "a\x00b"},
        {"choice": "approve", "reason": "x" * 2001},
        {"choice": "reject", "reason": " "},
    ],
    ids=repr,
)
def test_only_the_documented_words_decide(pending, alice, sent):
    """A05, S01, S11."""
    body = sent
    if sent and "choice" in sent:
        body = {**vote(pending), **sent}
    problem_of(session_of(alice).send(address_of(pending), json.dumps(body)), 400)
    assert untouched(pending)


@pytest.mark.parametrize("missing", ["choice", "reason", "version", "digest"])
def test_nothing_about_a_decision_is_guessed(pending, alice, missing):
    """A05."""
    sent = vote(pending)
    del sent[missing]
    assert paths_of(problem_of(session_of(alice).post(address_of(pending), sent), 400)) == [missing]
    assert untouched(pending)


@pytest.mark.parametrize(
    "body",
    [
        '{"choice": "reject", "choice": "approve", "reason": "", "version": 1, "digest": "D"}',
        "[" * 20_000 + "]" * 20_000,
        '["approve"]',
        '{"choice": "approve", "reason": NaN, "version": 1, "digest": "D"}',
        "",
    ],
)
def test_a_document_with_two_meanings_decides_nothing(pending, alice, body):
    """S02, S07, S09."""
    sent = body.replace('"D"', json.dumps(pending.digest))
    problem_of(session_of(alice).send(address_of(pending), sent), 400)
    assert untouched(pending)


@pytest.mark.parametrize("changed", [{"version": 2}, {"version": -(2**40)}, {"digest": "0" * 64}])
def test_what_the_person_did_not_see_is_not_decided(pending, alice, changed):
    answer = session_of(alice).post(address_of(pending), vote(pending, **changed))
    problem_of(answer, 409, "CHANGED_MEANWHILE")
    assert untouched(pending)


def test_it_may_be_too_late(pending, alice):
    set_clocks(pending, decide_by=timezone.now() - timedelta(seconds=1))
    problem_of(session_of(alice).post(address_of(pending), vote(pending)), 409, "TOO_LATE")
    assert not Decision.objects.exists()


# Who may -----------------------------------------------------------------------------------------


def test_a_token_never_decides(pending, alice):
    """A12. The try is kept."""
    program = token_of(alice)
    answer = program.post(address_of(pending), vote(pending))
    problem_of(answer, 403, "TOKEN_MAY_NOT_DECIDE")
    assert untouched(pending)
    refusal = Refusal.objects.get()
    assert (refusal.actor, refusal.code) == ("token:alice", "TOKEN_MAY_NOT_DECIDE")
    assert "token" in program.get(f"approvals/{pending.id}/").json()["why_not"]


def test_a_token_does_not_ride_on_a_session(pending, alice):
    both = token_of(alice)
    both.client.force_login(alice)
    problem_of(both.post(address_of(pending), vote(pending)), 403, "TOKEN_MAY_NOT_DECIDE")


def test_nobody_approves_what_they_or_their_token_asked_for(policy, db):
    """A12."""
    oscar = make_person("oscar", "approver")
    for started_by in ("user:oscar", "token:oscar"):
        pending = make_engine(started_by=started_by).ask()
        caller = session_of(oscar)
        problem_of(caller.post(address_of(pending), vote(pending)), 403, "SELF_APPROVAL")
        assert caller.get("approvals/").json()["results"] == []
        assert untouched(pending)


def test_another_person_approves_what_a_token_asked_for(policy, oscar, alice):
    pending = make_engine(started_by="token:oscar").ask()
    assert session_of(alice).post(address_of(pending), vote(pending)).status_code == 200


def test_who_may_only_look_is_refused_and_remembered(pending, vera):
    """A12."""
    problem_of(session_of(vera).post(address_of(pending), vote(pending)), 403, "NOT_PERMITTED")
    assert untouched(pending)
    assert Refusal.objects.get().actor == "user:vera"


def test_who_may_not_even_look_learns_nothing(pending, db):
    sam = session_of(make_person("sam", "stranger"))
    problem_of(sam.get("approvals/"), 403, "PERMISSION_DENIED")
    problem_of(sam.get(f"approvals/{pending.id}/"), 403, "PERMISSION_DENIED")
    problem_of(sam.post(address_of(pending), vote(pending)), 403, "PERMISSION_DENIED")
    problem_of(anonymous().get(f"approvals/{pending.id}/"), 401, "NOT_AUTHENTICATED")
    problem_of(anonymous().post(address_of(pending), vote(pending)), 401, "NOT_AUTHENTICATED")
    assert untouched(pending)


def test_another_tenants_approval_does_not_exist(policy, oscar, alice):
    """A12."""
    pending = make_engine(tenant="other").ask()
    caller = session_of(alice)
    problem_of(caller.get(f"approvals/{pending.id}/"), 404, "APPROVAL_NOT_FOUND")
    problem_of(caller.post(address_of(pending), vote(pending)), 404, "APPROVAL_NOT_FOUND")
    assert caller.get("approvals/").json()["results"] == []
    assert untouched(pending)


def test_a_right_that_was_taken_away_does_not_count(pending, alice):
    """A12."""
    caller = session_of(alice)
    assert caller.get(f"approvals/{pending.id}/").json()["why_not"] == ""
    alice.user_permissions.filter(codename="decide_approval").delete()
    problem_of(caller.post(address_of(pending), vote(pending)), 403, "NOT_PERMITTED")
    assert untouched(pending)


def test_a_link_decides_nothing(pending, alice):
    """A13."""
    caller = session_of(alice)
    for path in ("approvals/", f"approvals/{pending.id}/", address_of(pending)):
        for query in ("", "?action=approve", "?choice=approve"):
            for client in (caller.client, anonymous().client):
                for verb in ("get", "head", "options"):
                    getattr(client, verb)(V1 + path + query)
    caller.headers = {}
    problem_of(caller.post(address_of(pending), vote(pending)), 403, "PERMISSION_DENIED")
    assert untouched(pending)
    assert not Refusal.objects.exists()


def test_a_list_costs_the_same_however_long_it_is(policy, oscar, alice):
    def cost():
        caller = session_of(alice)
        with connection.execute_wrapper(counter := Counter()):
            assert caller.get("approvals/").status_code == 200
        return counter.statements

    make_engine().ask()
    one = cost()
    for _ in range(5):
        make_engine().ask()
    assert cost() == one


class Counter:
    """Counts statements."""

    def __init__(self):
        self.statements = 0

    def __call__(self, execute, sql, params, many, context):
        self.statements += 1
        return execute(sql, params, many, context)
