import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from durable.models import InboxItem
from tests import factories
from tests.dashboard.test_approvals import words_of
from tests.dashboard.test_text import HIDING

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(sweep):
    """A run that a worker is busy with, with a little history."""
    run = factories.make_run("running")
    factories.make_events(
        run,
        ("run.created", {"actor": "user:oscar"}),
        ("lease.acquired", {"payload": {"owner": "o", "worker": "worker-1@host-a"}}),
        "run.started",
        ("task.completed", {"task_key": "1", "payload": {"name": "validate", "result": {"ok": 1}}}),
        (
            "external.requested",
            {"task_key": "2", "payload": {"name": "charge", "operation": "charge", "key": "K-1"}},
        ),
    )
    return run


@pytest.fixture
def stopped(sweep):
    """A blocked run: nobody is sure whether the charge happened."""
    run = factories.make_run(
        "blocked",
        code="EFFECT_UNKNOWN",
        failure_class="unknown",
        requires_operator=True,
        reason="no answer in 20 s",
    )
    factories.make_record(run, "unknown", key="K-7:charge")
    factories.make_record(
        run, "succeeded", operation="reserve", key="K-7:stock", external_resource_id="res_9"
    )
    factories.make_event(
        run, "run.blocked", payload={"code": "EFFECT_UNKNOWN", "reason": "no answer in 20 s"}
    )
    return run


# The list ----------------------------------------------------------------------------------------


def test_the_list_says_why_each_run_is_where_it_is(browse, vera, sweep):
    factories.make_run("blocked", goal="Order 1", code="EFFECT_UNKNOWN")
    factories.make_run("waiting", goal="Order 2", waiting_for="approval")
    factories.make_run("running", goal="Order 3", lease={"activity": "create_shipment"})
    said = words_of(browse(vera).get("/runs/"))
    assert "not sure if an outside action happened" in said
    assert "Waiting for an approver to decide" in said
    assert "A worker is busy on create_shipment" in said


def test_older_runs_are_one_link_away_and_no_run_is_lost_between_pages(browse, vera, sweep):
    for number in range(120):
        factories.make_run("succeeded", goal=f"Order {number:03d}")
    client, address, seen = browse(vera), "/runs/", []
    while address:
        page = client.get(address)
        found = page.context["found"]
        seen += [row.run.goal for row in found.rows]
        address = f"/runs/?after={found.next}".replace("+", "%2B") if found.next else ""
    assert seen == [f"Order {number:03d}" for number in reversed(range(120))]


def test_a_view_shows_only_its_runs(browse, vera, sweep):
    factories.make_run("failed", goal="Bad")
    factories.make_run("succeeded", goal="Good")
    factories.make_run("succeeded", goal="Report", workflow="report")
    client = browse(vera)
    assert "Good" not in client.get("/runs/?view=failed").text
    only = client.get("/runs/?workflow=report").text
    assert "Report" in only
    assert "Good" not in only


@pytest.mark.parametrize(
    "query", ["?view=nonsense", "?after=x", "?after=2026_y", "?workflow=%00", "?view=all&after="]
)
def test_a_broken_address_shows_runs_all_the_same(browse, vera, sweep, query):
    assert browse(vera).get(f"/runs/{query}").status_code == 200


def test_no_worker_is_said_once_on_top(browse, vera):
    factories.make_sweep(seconds_ago=600)
    factories.make_run("pending")
    factories.make_run("pending")
    assert browse(vera).get("/runs/").text.count("No worker seems to be running") == 1


def test_the_list_stays_within_the_budget(browse, vera, sweep, within_budget):
    for _ in range(60):
        factories.make_run("waiting", waiting_for="approval")
    client = browse(vera)
    with within_budget():
        client.get("/runs/")


# One run -----------------------------------------------------------------------------------------


def test_the_page_of_a_run_answers_the_eight_questions(browse, vera, acme):
    factories.make_checkpoint(acme, 3, next_nodes=["ship"])
    factories.make_message(acme)
    factories.make_event(
        acme,
        "task.retrying",
        task_key="3",
        payload={"name": "pick", "error": {"kind": "x.Busy", "message": "locked"}},
    )
    factories.make_record(acme, "running", operation="charge", key="K-1")
    said = words_of(browse(vera).get(f"/runs/{acme.id}/"))
    for answer in (
        "Checkpoint 3",
        "ship",
        "worker-1@host-a",
        "Valid",
        "validate",
        "charge (running)",
        "pick (between two tries)",
        "task.retrying",
    ):
        assert answer in said


def test_a_stopped_run_shows_the_hand_over(browse, vera, stopped):
    said = words_of(browse(vera).get(f"/runs/{stopped.id}/"))
    for part in ("Hand-over", "K-7:charge", "K-7:stock", "res_9", stopped.goal, "no answer in 20"):
        assert part in said


def test_the_events_of_one_call_are_one_entry(browse, vera, acme):
    factories.make_event(
        acme, "external.completed", task_key="2", payload={"name": "charge", "resource": "ch_1"}
    )
    page = browse(vera).get(f"/runs/{acme.id}/")
    entries = [entry for entry in page.context["story"].entries if entry.key == "effects:2"]
    assert [event.type for event in entries[0].events] == [
        "external.requested",
        "external.completed",
    ]
    assert len(entries) == 1


@pytest.mark.parametrize("character", HIDING.values(), ids=HIDING.keys())
def test_hidden_characters_are_shown_in_every_field(browse, vera, sweep, character):
    """D02"""
    nasty = f"a{character}b"
    run = factories.make_run(
        "blocked",
        goal=nasty,
        workflow=nasty,
        version=nasty,
        thread_id=nasty,
        started_by=f"user:{nasty}",
        reason=nasty,
        code="WORKER_LOST",
        lease={"worker": nasty},
    )
    record = factories.make_record(
        run, "unknown", operation=nasty, key=nasty, external_resource_id=nasty
    )
    question = factories.make_interrupt(run, nasty)
    factories.make_event(
        run,
        "task.failed",
        task_key="1",
        node=nasty,
        payload={"name": nasty, "error": {"kind": nasty, "message": nasty}},
    )
    event = factories.make_event(run, "business", actor=nasty, payload={"name": nasty, nasty: 1})
    factories.make_message(run, event_type=nasty, last_error=nasty)
    factories.make_inbox_item(run, actor=f"user:{nasty}")
    client = browse(vera)
    escape = f"U+{ord(character):04X}"
    for address in (
        "/runs/",
        f"/runs/{run.id}/",
        f"/runs/{run.id}/events/{event.seq}/",
        f"/effects/{record.operation_id}/",
        f"/questions/{question.id}/",
    ):
        page = client.get(address)
        assert page.status_code == 200
        assert nasty not in page.text, address
        assert escape in page.text, address


def test_the_page_stays_within_the_budget(browse, oscar, stopped, within_budget):
    client = browse(oscar)
    with within_budget():
        client.get(f"/runs/{stopped.id}/")


def test_a_run_that_waits_for_approval_names_it_and_stays_within_the_budget(
    browse, vera, sweep, within_budget
):
    run = factories.make_run("waiting", waiting_for="approval")
    approval = factories.make_approval(run)
    client = browse(vera)
    with within_budget():
        page = client.get(f"/runs/{run.id}/")
    assert "to approve “Charge 5210.00 USD to customer acme-gmbh”" in words_of(page)
    assert f"/approvals/{approval.id}/" in page.text


def test_polling_answers_nothing_while_nothing_changes(browse, vera, acme):
    client = browse(vera)
    mark = client.get(f"/runs/{acme.id}/").context["mark"]
    address = f"/runs/{acme.id}/status/?mark={mark}&seen=5"
    assert client.get(address).status_code in (204, 200)  # 200 when the quarter minute turns
    factories.make_event(acme, "task.completed", task_key="9", payload={"name": "ship"})
    news = client.get(address)
    assert news.status_code == 200
    assert "1 new event: show" in news.text
    assert "<html" not in news.text


def test_polling_stops_when_the_run_has_ended(browse, vera, sweep):
    run = factories.make_run("succeeded")
    client = browse(vera)
    assert "every 3s" not in client.get(f"/runs/{run.id}/").text
    assert client.get(f"/runs/{run.id}/status/").status_code == 286


def test_a_foreign_tenant_s_run_does_not_exist(browse, oscar, post):
    foreign = factories.make_run("running", tenant="other")
    event = factories.make_event(foreign, "run.created")
    client = browse(oscar)
    for address in ("", "status/", f"events/{event.seq}/"):
        assert client.get(f"/runs/{foreign.id}/{address}").status_code == 404
    answer = post(client, "/operations/", f"/runs/{foreign.id}/cancel/", reason="mine?")
    assert answer.status_code == 404
    assert not InboxItem.objects.exists()


# What operators may do ---------------------------------------------------------------------------


def test_an_operator_asks_to_cancel_and_is_told_that_it_is_asked(browse, oscar, acme, post):
    client = browse(oscar)
    page = f"/runs/{acme.id}/"
    answer = post(client, page, f"{page}cancel/", reason="customer called")
    assert answer["Location"] == page
    assert "asked to cancel" in client.get(page).text
    asked = InboxItem.objects.get()
    assert (asked.type, asked.actor) == ("cancel.requested", "user:oscar")


@pytest.mark.parametrize("action", ["cancel", "resume", "give-up"])
def test_nothing_is_done_without_a_reason(browse, oscar, stopped, post, action):
    page = f"/runs/{stopped.id}/"
    answer = post(browse(oscar), page, f"{page}{action}/", reason="  ")
    assert answer.status_code == 422
    assert "Say why" in answer.text
    assert not InboxItem.objects.exists()


def test_an_operator_lets_a_stopped_run_try_again(browse, oscar, sweep, post):
    run = factories.make_run("blocked", code="WORKER_LOST")
    page = f"/runs/{run.id}/"
    client = browse(oscar)
    assert "Try again from where it is" in client.get(page).text
    post(client, page, f"{page}resume/", reason="fixed the memory leak")
    assert InboxItem.objects.get().type == "resume.requested"


def test_giving_up_is_refused_while_a_call_can_land(browse, oscar, sweep, post):
    """P03"""
    run = factories.make_run("blocked", code="EFFECT_UNKNOWN")
    factories.make_record(run, "unknown", settle_until=timezone.now() + timedelta(hours=1))
    page = f"/runs/{run.id}/"
    answer = post(browse(oscar), page, f"{page}give-up/", reason="enough")
    assert answer.status_code == 409
    assert "may still land until" in answer.text
    assert not InboxItem.objects.exists()


@pytest.mark.parametrize("action", ["cancel", "resume", "give-up"])
def test_who_only_looks_changes_nothing(browse, vera, alice, stopped, post, action):
    """A12"""
    page = f"/runs/{stopped.id}/"
    for person in (vera, alice):
        client = browse(person)
        assert 'method="post" action="/runs/' not in client.get(page).text
        assert post(client, page, f"{page}{action}/", reason="x").status_code == 403
    assert not InboxItem.objects.exists()


@pytest.mark.parametrize("action", ["cancel", "resume", "give-up"])
def test_nothing_but_a_post_with_its_token_changes_a_run(browse, oscar, stopped, action):
    """A13"""
    client = browse(oscar)
    address = f"/runs/{stopped.id}/{action}/"
    for method in ("get", "head", "options"):
        assert getattr(client, method)(address).status_code == 405
    assert client.post(address, {"reason": "x"}).status_code == 403
    assert not InboxItem.objects.exists()


# Events and search -------------------------------------------------------------------------------


def test_a_long_payload_is_cut_on_the_timeline_and_whole_on_its_own_page(browse, vera, sweep):
    """D04"""
    run = factories.make_run("running")
    long = "x" * 100_000 + " the end"
    event = factories.make_event(
        run, "task.completed", task_key="1", payload={"name": "big", "result": long}
    )
    client = browse(vera)
    page = client.get(f"/runs/{run.id}/")
    assert "big" in page.text
    assert len(page.text) < 60_000
    assert "the end" in client.get(f"/runs/{run.id}/events/{event.seq}/").text


def test_pages_of_the_timeline_reach_the_first_event(browse, vera, sweep):
    run = factories.make_run("running")
    for _ in range(130):
        factories.make_event(run, "business", payload={"name": "fact"})
    client = browse(vera)
    newest = client.get(f"/runs/{run.id}/")
    assert "Older events" in newest.text
    before = newest.context["found"].log.before
    oldest = client.get(f"/runs/{run.id}/?before={before}")
    assert "Older events" not in oldest.text
    assert oldest.context["found"].log.events[-1].seq == 1


@pytest.mark.parametrize("query", ["?before=x", "?before=-1", "?lane=nonsense", "?before=0"])
def test_a_broken_place_in_the_timeline_is_no_error(browse, vera, acme, query):
    assert browse(vera).get(f"/runs/{acme.id}/{query}").status_code == 200


def test_a_missing_event_is_404(browse, vera, acme):
    assert browse(vera).get(f"/runs/{acme.id}/events/999/").status_code == 404


def test_the_search_opens_what_a_text_names(browse, vera, stopped):
    client = browse(vera)
    record = stopped.records.get(operation="charge")
    places = {
        str(stopped.id): f"/runs/{stopped.id}/",
        f"evt_{stopped.id}_1": f"/runs/{stopped.id}/events/1/",
        "K-7:charge": f"/effects/{record.operation_id}/",
        str(record.operation_id): f"/effects/{record.operation_id}/",
    }
    for text, place in places.items():
        assert client.get("/search/", {"q": text})["Location"] == place


def test_the_search_opens_the_request_of_a_receipt(browse, vera):
    approval = factories.make_approval(factories.make_run("waiting"))
    foreign = factories.make_approval(factories.make_run("waiting", tenant="other"))
    client = browse(vera)
    for text in (approval.id, f"{approval.id} / 1"):
        assert client.get("/search/", {"q": text})["Location"] == f"/approvals/{approval.id}/"
    assert "Nothing found" in client.get("/search/", {"q": foreign.id}).text


@pytest.mark.parametrize("text", ["", "nothing", "\x00", "evt_x_1", str(uuid.uuid4()), "'; --"])
def test_a_search_for_nothing_says_so(browse, vera, text):
    assert "Nothing found" in browse(vera).get("/search/", {"q": text}).text
