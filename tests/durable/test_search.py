import uuid

import pytest

from durable import search
from tests import factories

pytestmark = pytest.mark.django_db

TENANT = "default"


@pytest.fixture
def run():
    run = factories.make_run("running", thread_id="customer-7", start_key="order_123")
    factories.make_event(run, "run.created")
    factories.make_checkpoint(run, 1)
    factories.make_record(run, "succeeded", key="order_123:reserve")
    factories.make_interrupt(run)
    return run


def test_every_id_of_a_run_finds_it(run):
    record, question = run.records.get(), run.interrupts.get()
    named = {
        str(run.id): "run",
        str(run.id).upper(): "run",
        f"  {run.id} ": "run",
        run.id.hex: "run",
        "customer-7": "run",
        "order_123": "run",
        f"evt_{run.id}_1": "event",
        f"ckpt_{run.id}_1": "checkpoint",
        "order_123:reserve": "operation",
        str(record.operation_id): "operation",
        str(question.id): "question",
    }
    for text, kind in named.items():
        (found,) = search.find(text, tenant=TENANT)
        assert (found.kind, found.run_id) == (kind, run.id), text


def test_another_tenant_finds_nothing(run):
    record, question = run.records.get(), run.interrupts.get()
    for text in (
        run.id,
        "customer-7",
        f"evt_{run.id}_1",
        f"ckpt_{run.id}_1",
        record.key,
        record.operation_id,
        question.id,
    ):
        assert search.find(str(text), tenant="other") == []


@pytest.mark.parametrize(
    "text",
    ["", " ", "\x00", "evt_", f"evt_{uuid.uuid4()}_1", "evt_" + "-" * 36 + "_1", "x" * 5000, "%"],
)
def test_what_names_nothing_finds_nothing(run, text):
    assert search.find(text, tenant=TENANT) == []


def test_a_search_costs_at_most_three_statements(run, django_assert_max_num_queries):
    with django_assert_max_num_queries(3):
        search.find(str(run.id), tenant=TENANT)
    with django_assert_max_num_queries(2):
        search.find(f"evt_{run.id}_1", tenant=TENANT)
