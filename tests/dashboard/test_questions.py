import json
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from durable.models import InboxItem
from tests import factories
from tests.dashboard.test_approvals import words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def warehouse(sweep):
    """An open question of a waiting run."""
    run = factories.make_run("waiting", waiting_for="answer")
    return factories.make_interrupt(run, "Hamburg or Rotterdam?")


def address(question):
    return f"/questions/{question.id}/"


def test_an_answer_is_recorded_and_said_to_be_recorded(browse, oscar, warehouse, post):
    client = browse(oscar)
    assert "Hamburg or Rotterdam?" in client.get(address(warehouse)).text
    answer = post(client, address(warehouse), format="text", answer="Hamburg")
    assert answer["Location"] == address(warehouse)
    said = words_of(client.get(address(warehouse)))
    assert "Recorded: your answer" in said
    assert "Answered by oscar" in said
    assert "A worker has not taken the answer yet" in said


@pytest.mark.parametrize(
    ("format", "typed", "value"),
    [
        ("json", "false", False),
        ("json", "0", 0),
        ("json", '""', ""),
        ("json", "[]", []),
        ("json", "{}", {}),
        ("json", "null", None),
        ("json", '{"1":"x"}', {"1": "x"}),
        ("text", "", ""),
        ("text", " two\r\nlines ", " two\nlines "),
        ("text", "false", "false"),
    ],
)
def test_an_empty_looking_answer_is_an_answer(browse, oscar, warehouse, post, format, typed, value):
    """S12"""
    post(browse(oscar), address(warehouse), format=format, answer=typed)
    assert json.loads(InboxItem.objects.get().payload)["value"] == value


@pytest.mark.parametrize("typed", ["{", "", "NaN", '{"a":1,"a":2}'])
def test_broken_json_is_refused_and_the_question_stays_open(browse, oscar, warehouse, post, typed):
    answer = post(browse(oscar), address(warehouse), format="json", answer=typed)
    assert answer.status_code == 422
    assert "was not recorded" in answer.text
    warehouse.refresh_from_db()
    assert warehouse.status == "open"


def test_the_first_answer_stands(browse, oscar, warehouse, post):
    client = browse(oscar)
    post(client, address(warehouse), format="text", answer="Hamburg")
    late = post(client, address(warehouse), format="text", answer="Rotterdam")
    assert late.status_code == 409
    assert "Hamburg" in words_of(late)
    assert InboxItem.objects.count() == 1


def test_a_question_whose_time_is_over_takes_no_answer(browse, oscar, sweep, post):
    question = factories.make_interrupt(
        factories.make_run("waiting"), expires_at=timezone.now() - timedelta(seconds=1)
    )
    client = browse(oscar)
    assert "Nobody answered before" in client.get(address(question)).text
    answer = post(client, address(question), format="text", answer="late")
    assert answer.status_code == 409


def test_who_only_looks_cannot_answer(browse, vera, warehouse, post):
    """A12, A13"""
    client = browse(vera)
    assert "not answer it" in client.get(address(warehouse)).text
    assert post(client, address(warehouse), format="text", answer="x").status_code == 403
    for method in ("head", "options"):
        getattr(client, method)(address(warehouse))
    assert not InboxItem.objects.exists()


def test_a_wrong_or_foreign_id_is_404(browse, oscar):
    foreign = factories.make_interrupt(factories.make_run("waiting", tenant="other"))
    client = browse(oscar)
    assert client.get(address(foreign)).status_code == 404
    assert client.get(f"/questions/{uuid.uuid4()}/").status_code == 404


def test_the_page_stays_within_the_budget(browse, oscar, warehouse, within_budget):
    client = browse(oscar)
    with within_budget():
        client.get(address(warehouse))
