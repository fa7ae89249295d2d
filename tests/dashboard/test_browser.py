"""The pages in a real browser: swaps, focus, widths, and a policy that nothing breaks."""

import pytest
from django.test import Client

from approvals.models import Decision
from tests import factories
from tests.people import make_person

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def open_as(chromium, transactional_db, live_server):
    """Open a page as a person; anything that the browser complains about fails the test."""
    contexts, complaints = [], []

    def open_page(person, address, *, width=1280, **options):
        client = Client()
        client.force_login(person)
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        session = client.cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text)
                if said.type == "error" and "status of 4" not in said.text
                else None
            ),
        )
        page.goto(live_server.url + address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def asked(oscar):
    factories.make_sweep()
    return factories.make_approval(factories.make_run("waiting", waiting_for="approval"))


@pytest.fixture
def oscar(chromium, transactional_db):
    return make_person("oscar", "operator")


@pytest.fixture
def alice(chromium, transactional_db):
    return make_person("alice", "approver")


def test_a_decision_shows_its_receipt_without_a_reload_and_moves_the_focus_there(
    open_as, alice, asked
):
    page = open_as(alice, f"/approvals/{asked.id}/")
    page.evaluate("window.loaded = 1")
    page.check("input[value=reject]")
    page.click("text=Record my decision")
    page.wait_for_selector(".error")  # a rejection needs a reason
    page.fill("#reason", "duplicate")
    page.click("text=Record my decision")
    page.wait_for_selector("#outcome")
    assert page.evaluate("[window.loaded, document.activeElement.id]") == [1, "outcome"]
    assert Decision.objects.get().reason == "duplicate"


def test_a_decision_needs_no_javascript(open_as, alice, asked):
    page = open_as(alice, f"/approvals/{asked.id}/", java_script_enabled=False)
    page.check("input[value=approve]")
    page.click("text=Record my decision")
    assert "Approved by alice" in page.inner_text("section[aria-labelledby=outcome]")


def test_a_decision_can_be_made_with_the_keyboard_alone(open_as, alice, asked):
    page = open_as(alice, f"/approvals/{asked.id}/")
    page.focus("input[value=approve]")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")  # the reason
    page.keyboard.press("Tab")  # the button
    page.keyboard.press("Enter")
    page.wait_for_selector("#outcome")
    assert Decision.objects.get().choice == "approve"


def test_a_run_that_ends_says_so_by_itself(open_as, oscar):
    factories.make_sweep()
    run = factories.make_run("running")
    page = open_as(oscar, f"/runs/{run.id}/")
    page.focus("#next-cancel")
    run.status, run.ended_at = "succeeded", run.created_at
    run.save()
    page.wait_for_selector("text=Finished successfully", timeout=10_000)
    assert page.inner_text("#announce") == "Finished successfully."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_at_320_pixels(open_as, oscar, asked, scheme):
    nasty = "x" * 400 + "\u202e" + " " * 5000 + "y"
    run = factories.make_run("blocked", goal=nasty, code="EFFECT_UNKNOWN", workflow="w" * 90)
    record = factories.make_record(run, "unknown", key=nasty, operation="o" * 120)
    factories.make_events(
        run,
        ("task.completed", {"task_key": "1", "payload": {"name": nasty, "result": nasty}}),
        ("external.unknown", {"task_key": "2", "payload": {"operation": nasty, "key": nasty}}),
    )
    question = factories.make_interrupt(run, nasty)
    wide = factories.make_approval(
        factories.make_run("waiting"), title=nasty, parameters={nasty: nasty, "b": [nasty]}
    )
    for address in (
        "/",
        f"/approvals/{wide.id}/",
        "/runs/",
        f"/runs/{run.id}/",
        f"/runs/{run.id}/events/1/",
        "/operations/",
        f"/effects/{record.operation_id}/",
        f"/questions/{question.id}/",
        "/search/?q=nothing",
    ):
        page = open_as(oscar, address, width=320, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, address
        page.context.close()
