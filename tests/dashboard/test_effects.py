import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from durable.models import InboxItem, Lease
from tests import factories
from tests.dashboard.test_approvals import words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def unknown(sweep):
    """A charge that may have happened; its call can no longer land."""
    run = factories.make_run("blocked", code="EFFECT_UNKNOWN")
    return factories.make_record(run, "unknown", key="K-7:charge")


@pytest.fixture
def landing(sweep):
    """A charge that may have happened, and whose call may still land for an hour."""
    run = factories.make_run("blocked", code="EFFECT_UNKNOWN")
    return factories.make_record(run, "unknown", settle_until=timezone.now() + timedelta(hours=1))


def address(record):
    return f"/effects/{record.operation_id}/"


def test_the_page_shows_what_is_known_and_each_way_to_settle_it(browse, oscar, unknown):
    said = words_of(browse(oscar).get(address(unknown)))
    for part in (
        "did it happen?",
        "K-7:charge",
        str(unknown.operation_id),
        "5210.00",
        "Ask the service",
        "It happened",
        "It did not happen",
        "Give up the run",
        "Hand-over",
    ):
        assert part in said


def test_asking_says_asked_and_not_done(browse, oscar, unknown, post):
    client = browse(oscar)
    answer = post(client, address(unknown), f"{address(unknown)}ask/")
    assert answer["Location"] == address(unknown)
    said = words_of(client.get(address(unknown)))
    assert "Asked." in said
    assert "done" not in said.split("Settle it")[0].lower().replace(
        "has not done it yet", ""
    ).replace("confirmed done", "")
    assert InboxItem.objects.get().type == "external.reconcile_requested"


def test_it_happened_is_recorded_with_its_id_and_result(browse, oscar, unknown, post):
    """E03"""
    client = browse(oscar)
    post(
        client,
        address(unknown),
        f"{address(unknown)}happened/",
        resource_id="ch_881",
        result='{"charge": "ch_881"}',
        reason="seen in their console",
    )
    unknown.refresh_from_db()
    assert unknown.status == "succeeded"
    assert unknown.external_resource_id == "ch_881"
    said = words_of(client.get(address(unknown)))
    assert "Recorded: it happened" in said
    assert "A worker has not taken it yet" in said


def test_it_did_not_happen_allows_the_retry_under_the_same_key(browse, oscar, unknown, post):
    """E03"""
    client = browse(oscar)
    where = f"{address(unknown)}not-happened/"
    answer = post(client, address(unknown), where, reason="not in their list")
    assert answer.status_code == 302
    unknown.refresh_from_db()
    assert (unknown.status, unknown.key) == ("failed", "K-7:charge")


def test_it_did_not_happen_is_refused_while_the_call_can_land(browse, oscar, landing, post):
    """P03"""
    client = browse(oscar)
    page = client.get(address(landing))
    assert "The first call may still land until" in page.text
    where = f"{address(landing)}not-happened/"
    answer = post(client, address(landing), where, reason="looks empty")
    assert answer.status_code == 409
    assert "may still land until" in answer.text
    assert "looks empty" in answer.text  # what was typed is kept
    landing.refresh_from_db()
    assert landing.status == "unknown"


def test_what_is_found_out_about_an_ended_run_promises_nothing_more(browse, oscar, sweep, post):
    """A page never says that something continues which has ended."""
    run = factories.make_run("failed", code="GIVEN_UP")
    record = factories.make_record(run, "unknown")
    client = browse(oscar)
    before = words_of(client.get(address(record)))
    assert "Ask the service" not in before
    assert "The run has ended: this is only recorded." in before
    form = {"resource_id": "ch_9", "result": "", "reason": "seen in their console"}
    post(client, address(record), f"{address(record)}happened/", **form)
    said = words_of(client.get(address(record)))
    assert "The run has ended and does not undo it" in said
    assert "The run continues" not in said


def test_what_is_found_out_about_a_run_that_turns_back_says_that_nothing_is_sent(
    browse, oscar, unknown
):
    Lease.objects.filter(run=unknown.run).update(cancel_requested=True)
    said = words_of(browse(oscar).get(address(unknown)))
    assert "nothing is sent, and nothing of this is left" in said
    assert "sent once more" not in said


@pytest.mark.parametrize("way", ["happened", "not-happened", "give-up"])
def test_each_way_needs_a_reason(browse, oscar, unknown, post, way):
    where = f"{address(unknown)}{way}/"
    answer = post(browse(oscar), address(unknown), where, resource_id="ch_1", reason="")
    assert answer.status_code == 422
    assert "Say why" in answer.text
    unknown.refresh_from_db()
    assert unknown.status == "unknown"


@pytest.mark.parametrize("result", ["{", '{"a":1,"a":2}', "NaN", "x"])
def test_a_result_that_is_not_json_is_refused(browse, oscar, unknown, post, result):
    where = f"{address(unknown)}happened/"
    answer = post(
        browse(oscar), address(unknown), where, resource_id="c", result=result, reason="seen"
    )
    assert answer.status_code == 422
    assert "not valid JSON" in answer.text


def test_a_second_operator_is_told_that_it_is_settled(browse, oscar, unknown, post):
    client = browse(oscar)
    where = f"{address(unknown)}happened/"
    post(client, address(unknown), where, resource_id="ch_1", reason="seen")
    late = post(client, address(unknown), f"{address(unknown)}not-happened/", reason="no")
    assert late.status_code == 409
    assert "already known" in late.text


@pytest.mark.parametrize("way", ["ask", "happened", "not-happened", "give-up"])
def test_only_an_operator_settles_anything_and_only_by_post(
    browse, oscar, vera, unknown, post, way
):
    """A12, A13"""
    where = f"{address(unknown)}{way}/"
    fields = {"resource_id": "c", "reason": "x"}
    viewer = browse(vera)
    assert "may look at this, but not settle it" in viewer.get(address(unknown)).text
    assert post(viewer, address(unknown), where, **fields).status_code == 403
    operator = browse(oscar)
    for method in ("get", "head", "options"):
        assert getattr(operator, method)(where).status_code == 405
    assert operator.post(where, fields).status_code == 403
    assert not InboxItem.objects.exists()
    unknown.refresh_from_db()
    assert unknown.status == "unknown"


def test_a_foreign_tenant_s_action_does_not_exist(browse, oscar, post):
    foreign = factories.make_record(factories.make_run("blocked", tenant="other"))
    client = browse(oscar)
    assert client.get(address(foreign)).status_code == 404
    answer = post(client, "/operations/", f"{address(foreign)}ask/")
    assert answer.status_code == 404
    assert client.get(f"/effects/{uuid.uuid4()}/").status_code == 404


def test_the_page_stays_within_the_budget(browse, oscar, unknown, within_budget):
    client = browse(oscar)
    with within_budget():
        client.get(address(unknown))
