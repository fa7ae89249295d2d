"""People and the example shop, end to end: a browser, the engine, the services' own ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from durable import engine, runs
from durable.models import Run
from examples.models import Order

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("checked")]

SAMPLE = Path(__file__).parents[2] / "examples" / "data" / "orders.jsonl"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def large_order(sandbox):
    """An order above 5,000 that waits for a person."""
    order = next(
        o for o in map(json.loads, SAMPLE.read_text().splitlines()) if float(o["total"]) > 5000
    )
    run = runs.start("fulfil", order, actor="system:orders", key=order["order_id"]).run
    engine.advance(run.id)
    return order


def run_of(order):
    return Run.objects.get(start_key=order["order_id"])


@pytest.mark.parametrize("options", [{}, PHONE, {"java_script_enabled": False}])
def test_an_order_approved_in_a_browser_is_charged_once_and_shipped(
    options, visit, alice, large_order, sandbox
):
    page = visit(alice, **options)
    page.click(f"text=Charge {large_order['total']}")
    for shown in (large_order["total"], large_order["customer_id"], large_order["order_id"]):
        assert page.locator("dd", has_text=shown).count() >= 1
    page.check("input[value=approve]")
    page.click("text=Record my decision")
    page.wait_for_selector("text=Receipt")
    engine.advance(run_of(large_order).id)

    assert sandbox.applied("charge", large_order["order_id"]) == 1
    assert Order.objects.get(order_id=large_order["order_id"]).status == "shipped"
    assert run_of(large_order).status == "succeeded"


def test_an_order_rejected_in_a_browser_is_never_charged(visit, alice, large_order, sandbox):
    page = visit(alice)
    page.click(f"text=Charge {large_order['total']}")
    page.check("input[value=reject]")
    page.fill("[name=reason]", "the customer has left")
    page.click("text=Record my decision")
    page.wait_for_selector("text=Receipt")
    engine.advance(run_of(large_order).id)

    assert sandbox.applied("charge") == 0
    order = Order.objects.get(order_id=large_order["order_id"])
    assert (order.status, run_of(large_order).status) == ("cancelled", "succeeded")
    assert "the customer has left" in order.reason


def test_a_page_that_is_out_of_date_says_who_decided_and_records_nothing(
    visit, alice, bob, large_order
):
    slow, quick = visit(alice), visit(bob)
    for page in (slow, quick):
        page.click(f"text=Charge {large_order['total']}")
    quick.check("input[value=reject]")
    quick.fill("[name=reason]", "duplicate")
    quick.click("text=Record my decision")
    quick.wait_for_selector("text=Receipt")
    slow.check("input[value=approve]")
    slow.click("text=Record my decision")
    slow.wait_for_selector("text=Your choice was not recorded")

    assert "bob" in slow.inner_text("[role=alert]")
    assert "duplicate" in slow.inner_text("[role=alert]")


@pytest.mark.parametrize("address", ["/", "/runs/", "/operations/"])
def test_no_page_scrolls_sideways_on_a_small_phone(address, visit, oscar, large_order):
    page = visit(oscar, viewport={"width": 320, "height": 640})
    page.goto(address)

    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_the_pages_obey_their_own_content_security_policy(visit, oscar, large_order):
    page = visit(oscar)
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    for address in ("/", "/runs/", f"/runs/{run_of(large_order).id}/", "/operations/"):
        page.goto(address)

    assert complaints == []
