import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from durable import queries
from durable.models import IdempotencyRecord, Interrupt, Run
from durable.queries import counts
from tests import factories

pytestmark = pytest.mark.django_db

TENANT = "default"


@pytest.fixture
def busy():
    """A run with some of everything."""
    run = factories.make_run("running")
    factories.make_events(
        run,
        "run.created",
        ("task.completed", {"task_key": "1", "payload": {"name": "validate"}}),
        (
            "task.failed",
            {"task_key": "2", "payload": {"error": {"kind": "m.Bad", "message": "no"}}},
        ),
    )
    factories.make_record(run, "unknown")
    factories.make_interrupt(run)
    factories.make_inbox_item(run)
    factories.make_message(run)
    factories.make_checkpoint(run, 2, next_nodes=["ship"])
    factories.make_sweep()
    return run


def test_the_list_costs_three_statements(busy, django_assert_num_queries):
    with django_assert_num_queries(3):
        queries.run_list(tenant=TENANT)


def test_a_run_costs_seven_statements_and_eight_when_it_is_blocked(busy, django_assert_num_queries):
    with django_assert_num_queries(7):
        queries.run_page(busy.id, tenant=TENANT)
    blocked = factories.make_run("blocked", code="EFFECT_UNKNOWN")
    factories.make_event(blocked, "run.blocked")
    with django_assert_num_queries(8):
        queries.run_page(blocked.id, tenant=TENANT)


def test_an_effect_costs_seven_and_a_question_two(busy, django_assert_num_queries):
    record, question = IdempotencyRecord.objects.get(), Interrupt.objects.get()
    with django_assert_num_queries(7):
        queries.effect_page(record.operation_id, tenant=TENANT)
    with django_assert_num_queries(2):
        queries.question_page(question.id, tenant=TENANT)
    with django_assert_num_queries(2):
        queries.event_page(busy.id, 1, tenant=TENANT)


def test_operations_cost_nine_statements(busy, django_assert_num_queries):
    with django_assert_num_queries(9):
        queries.operations(tenant=TENANT)


def test_the_diagnosis_answers_from_what_is_stored(busy):
    found = queries.run_page(busy.id, tenant=TENANT).diagnosis
    assert found.checkpoint is not None
    assert found.checkpoint.id == f"ckpt_{busy.id}_2"
    assert found.next_nodes == ["ship"]
    assert (found.worker, found.lease_held) == ("worker-1@host-a", True)
    assert found.completed == 1
    assert found.unfinished == ["charge (unknown)"]
    assert found.outbox_pending.number == 1
    assert found.last_error is not None
    assert found.last_error.type == "task.failed"


def test_a_foreign_tenant_reads_nothing(busy):
    record, question = IdempotencyRecord.objects.get(), Interrupt.objects.get()
    with pytest.raises(Run.DoesNotExist):
        queries.run_page(busy.id, tenant="other")
    with pytest.raises(Run.DoesNotExist):
        queries.event_page(busy.id, 1, tenant="other")
    with pytest.raises(IdempotencyRecord.DoesNotExist):
        queries.effect_page(record.operation_id, tenant="other")
    with pytest.raises(Interrupt.DoesNotExist):
        queries.question_page(question.id, tenant="other")
    assert queries.run_list(tenant="other").rows == []
    assert queries.operations(tenant="other").received == []


def test_unknown_records_come_first_however_many_there_are():
    run = factories.make_run("running")
    factories.make_record(run, "unknown", key="the one", created_at=timezone.now() - timedelta(1))
    for number in range(60):
        factories.make_record(run, "succeeded", key=f"K-{number}")
    found = queries.run_page(run.id, tenant=TENANT)
    assert found.records[0].key == "the one"
    assert (len(found.records), found.records_left) == (50, 11)


def test_counts_stop_at_a_thousand(monkeypatch):
    monkeypatch.setattr(counts, "MOST_COUNTED", 3)
    for _ in range(5):
        factories.make_run("succeeded")
    found = queries.run_list(tenant=TENANT).counts
    assert str(found[queries.View.SUCCEEDED]) == "3+"
    assert str(found[queries.View.FAILED]) == "0"


def test_runs_created_at_one_moment_are_each_listed_once():
    now = timezone.now()
    runs = {factories.make_run("succeeded", created_at=now).id for _ in range(7)}
    seen, after = [], None
    while True:
        page = queries.run_list(tenant=TENANT, after=after, size=2)
        seen += [row.run.id for row in page.rows]
        after = page.next
        if after is None:
            break
        assert queries.Position.parse(str(after)) == after
    assert len(seen) == 7
    assert set(seen) == runs


@pytest.mark.parametrize("text", ["", "x", "2026-01-01_x", f"2026-01-01T00:00:00_{uuid.uuid4()}"])
def test_a_position_that_no_page_wrote_is_none(text):
    assert queries.Position.parse(text) is None


def test_stuck_runs_are_those_left_or_due_for_long():
    now = timezone.now()
    left = factories.make_run("running", lease={"expires_at": now - timedelta(minutes=2)})
    due = factories.make_run("waiting", wake_at=now - timedelta(minutes=2))
    factories.make_run("running")
    factories.make_run("waiting", wake_at=now - timedelta(seconds=2))
    factories.make_run("waiting", wake_at=now + timedelta(hours=2))
    stuck = queries.operations(tenant=TENANT).stuck
    assert {row.run.id for row in stuck} == {left.id, due.id}
