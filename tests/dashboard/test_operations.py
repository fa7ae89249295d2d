from datetime import timedelta

import pytest
from django.utils import timezone

from tests import factories
from tests.dashboard.test_approvals import words_of

pytestmark = pytest.mark.django_db


def test_everything_that_needs_an_operator_is_on_one_page(browse, oscar, sweep):
    long_ago = timezone.now() - timedelta(minutes=12)
    blocked = factories.make_run("blocked", goal="Stopped one", code="EFFECT_UNKNOWN")
    factories.make_record(blocked, "unknown", key="K-7:charge")
    factories.make_run("running", goal="Left one", lease={"expires_at": long_ago})
    factories.make_run("waiting", goal="Due one", wake_at=long_ago)
    factories.make_interrupt(factories.make_run("waiting", waiting_for="answer"), "Which one?")
    factories.make_inbox_item(blocked)
    factories.make_message(blocked, last_error="SMTP 451")
    said = words_of(browse(oscar).get("/operations/"))
    for part in (
        "Stopped one",
        "K-7:charge",
        "Left one",
        "Due one",
        "Which one?",
        "approval.decided",
        "SMTP 451",
    ):
        assert part in said
    assert "No worker seems to be running" not in said


def test_no_worker_is_said_loudly(browse, oscar):
    factories.make_sweep(seconds_ago=300)
    assert "No worker seems to be running" in browse(oscar).get("/operations/").text


def test_an_empty_system_says_that_all_is_well(browse, oscar, sweep):
    said = words_of(browse(oscar).get("/operations/"))
    assert "Every outside action is accounted for" in said
    assert "No run needs you" in said


def test_only_operators_see_it(browse, vera, alice):
    for person in (vera, alice):
        assert browse(person).get("/operations/").status_code == 403


def test_another_tenant_s_trouble_is_not_shown(browse, oscar, sweep):
    foreign = factories.make_run("blocked", tenant="other", goal="Foreign goal")
    factories.make_record(foreign, "unknown", key="foreign-key")
    factories.make_inbox_item(foreign, actor="user:foreigner")
    said = words_of(browse(oscar).get("/operations/"))
    for part in ("Foreign goal", "foreign-key", "foreigner"):
        assert part not in said


def test_the_page_stays_within_the_budget(browse, oscar, sweep, within_budget):
    for number in range(60):
        run = factories.make_run("blocked", code="EFFECT_UNKNOWN")
        factories.make_record(run, "unknown", key=f"K-{number}")
    client = browse(oscar)
    with within_budget():
        client.get("/operations/")
