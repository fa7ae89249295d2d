"""The tables of moves say exactly what the database admits: every pair is tried."""

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from durable.models import IdempotencyRecord, Run
from durable.statuses import (
    FINAL_RUN_STATUSES,
    RECORD_MOVES,
    RUN_MOVES,
    EventType,
    RecordStatus,
    RunStatus,
)
from tests.factories import make_record, make_run

pytestmark = pytest.mark.django_db


def admitted(change):
    """Whether the database lets it happen; afterwards it has not."""
    try:
        with transaction.atomic():
            change()
            transaction.set_rollback(True)
    except DatabaseError:
        return False
    return True


def test_the_database_admits_exactly_the_moves_of_a_run():
    found = set()
    for source in RunStatus:
        run = make_run(source, wake_at=None)
        for target in RunStatus:
            fields = {"status": target, "wake_at": None, "ended_at": timezone.now()}
            if admitted(lambda r=run, f=fields: Run.objects.filter(id=r.id).update(**f)):
                found.add((source, target))
    stays = {(status, status) for status in RunStatus}
    assert found - stays == {(a, b) for a, targets in RUN_MOVES.items() for b in targets}


def test_the_database_admits_exactly_the_moves_of_an_outside_action():
    run, found = make_run(), set()
    for source in RecordStatus:
        record = make_record(run, source, epoch=1)
        bound = {"request_hash": "h", "call_deadline": timezone.now(), "epoch": 1}
        if record.request_hash:
            del bound["request_hash"]
        for target in RecordStatus:
            change = IdempotencyRecord.objects.filter(operation_id=record.operation_id)
            if admitted(lambda c=change, t=target, b=bound: c.update(status=t, **b)):
                found.add((source, target))
    stays = {(status, status) for status in RecordStatus}
    assert found - stays == {(a, b) for a, targets in RECORD_MOVES.items() for b in targets}


def test_nothing_leads_out_of_an_end():
    assert all(not RUN_MOVES[status] for status in FINAL_RUN_STATUSES)
    assert not RECORD_MOVES[RecordStatus.COMPENSATED]


def test_an_end_has_a_time_and_nothing_due():
    run = make_run("running")
    change = Run.objects.filter(id=run.id)
    now = timezone.now()
    assert not admitted(lambda: change.update(status="failed", ended_at=None, wake_at=None))
    assert not admitted(lambda: change.update(status="failed", ended_at=now, wake_at=now))
    assert admitted(lambda: change.update(status="failed", ended_at=now, wake_at=None))


@pytest.mark.parametrize("status", ["", "Succeeded", "done", "running "])
def test_no_other_word_is_a_status(status):
    run = make_run("running")
    record = make_record(run)
    assert not admitted(lambda: Run.objects.filter(id=run.id).update(status=status))
    assert not admitted(
        lambda: IdempotencyRecord.objects.filter(pk=record.pk).update(status=status)
    )


@pytest.mark.parametrize("field", ["request_hash", "key", "operation", "tenant"])
def test_key_and_request_of_an_action_never_change_once_bound(field):
    record = make_record(make_run(), "running")
    change = IdempotencyRecord.objects.filter(pk=record.pk)
    assert not admitted(lambda: change.update(**{field: "other"}))


def test_nothing_is_running_without_hash_deadline_and_epoch():
    """Invariant 4."""
    record = make_record(make_run(), "prepared")
    change = IdempotencyRecord.objects.filter(pk=record.pk)
    assert not admitted(lambda: change.update(status="running"))
    bound = {"request_hash": "h", "call_deadline": timezone.now(), "epoch": 1}
    for missing in bound:
        partial = {name: value for name, value in bound.items() if name != missing}
        assert not admitted(lambda p=partial: change.update(status="running", **p))


def test_every_event_of_the_first_article_has_its_word():
    words = {event.value for event in EventType}
    assert words >= {
        "run.started",
        "run.resumed",
        "run.failed",
        "node.started",
        "task.completed",
        "external.requested",
        "external.completed",
        "interrupt.waiting",
        "checkpoint.committed",
        "lease.acquired",
        "lease.lost",
    }
