import uuid

import pytest

from tests import factories


@pytest.fixture
def request_for_acme(db):
    return factories.make_approval(factories.make_run("waiting", waiting_for="approval"))


def test_an_approver_sees_what_waits_for_them_with_its_deadline(browse, alice, request_for_acme):
    page = browse(alice).get("/")
    assert page.status_code == 200
    assert "Charge 5210.00 USD to customer acme-gmbh" in page.text
    assert f"/approvals/{request_for_acme.id}/" in page.text
    assert request_for_acme.decide_by.isoformat(timespec="milliseconds") in page.text


def test_engine_words_are_kept_from_approvers(browse, alice, request_for_acme):
    page = browse(alice).get("/")
    for word in ("interrupt", "checkpoint", "lease", "epoch", "idempotency", "resume"):
        assert word not in page.text.lower()


def test_what_is_overdue_or_withdrawn_is_not_listed_as_open(browse, alice):
    """A07, A11"""
    from datetime import timedelta

    from django.utils import timezone

    run = factories.make_run("waiting")
    factories.make_approval(run, title="Too late", decide_by=timezone.now() - timedelta(seconds=1))
    factories.make_approval(factories.make_run("cancelled"), "void", title="Withdrawn one")
    page = browse(alice).get("/")
    assert "Too late" not in page.text
    assert "Withdrawn one" not in page.text
    assert "Nothing waits for you" in page.text


def test_one_s_own_request_waits_for_others(browse, alice):
    factories.make_approval(factories.make_run("waiting", started_by="user:alice"))
    client = browse(alice)
    assert "Nothing waits for you" in client.get("/").text
    assert "Charge 5210.00" in client.get("/?view=waiting_for_others").text


def test_the_list_only_says_that_it_changed_and_moves_no_row(browse, alice, request_for_acme):
    client = browse(alice)
    seen = client.get("/").context["mark"]
    poll = {"HX-Request": "true"}
    assert client.get(f"/?seen={seen}", headers=poll).status_code == 204
    factories.make_approval(factories.make_run("waiting"))
    news = client.get(f"/?seen={seen}", headers=poll)
    assert "This list has changed" in news.text
    assert "<html" not in news.text


def test_another_tenant_s_requests_are_not_shown(browse, alice):
    factories.make_approval(factories.make_run("waiting", tenant="other"), title="Foreign")
    assert "Foreign" not in browse(alice).get("/").text


def test_the_inbox_stays_within_the_budget(browse, alice, within_budget):
    for _ in range(60):
        factories.make_approval(factories.make_run("waiting"))
    client = browse(alice)
    with within_budget():
        page = client.get("/")
    assert "More requests" in page.text


def test_a_broken_page_mark_leads_to_the_first_page(browse, alice, request_for_acme):
    assert browse(alice).get("/?after=nonsense").status_code == 302


def test_nobody_gets_in_without_a_login(client, db):
    for address in ("/", "/runs/", "/operations/", f"/approvals/{uuid.uuid4()}/"):
        page = client.get(address)
        assert page.status_code == 302
        assert page["Location"].startswith("/login/?next=")


def test_a_session_that_ended_makes_htmx_leave_the_page(client, db):
    address = f"http://testserver/runs/{uuid.uuid4()}/"
    answer = client.get("/", headers={"HX-Request": "true", "HX-Current-URL": address})
    assert answer["HX-Redirect"].startswith("/login/?next=/runs/")


def test_somebody_without_rights_gets_403(browse, sam):
    for address in ("/", "/runs/", "/operations/"):
        page = browse(sam).get(address)
        assert page.status_code == 403
        assert "may not open this page" in page.text


def test_a_person_logs_in_with_a_form_and_out_with_a_post(browse, alice, post):
    from django.test import Client

    alice.set_password("correct horse battery")
    alice.save()
    client = Client(enforce_csrf_checks=True)
    wrong = post(client, "/login/", username="alice", password="wrong")
    assert "do not match" in wrong.text
    right = post(
        client,
        "/login/?next=/runs/",
        username="alice",
        password="correct horse battery",
        next="/runs/",
    )
    assert right["Location"] == "/runs/"
    assert client.get("/logout/").status_code == 405
    assert post(client, "/", "/logout/").status_code == 302
    assert client.get("/").status_code == 302
