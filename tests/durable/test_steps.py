"""Recorded tasks: run until the result is stored, and never again after that."""

import json
import time

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connections, transaction

from durable import Retry, Retryable, canonical, interrupt, task, workflow
from durable.models import OutboxMessage
from tests.factories import make_message
from tests.scenario import begin, events, fresh, go, output, payloads, start, types, value_of

pytestmark = pytest.mark.usefixtures("checked")

RAN: list[object] = []


@pytest.fixture(autouse=True)
def nothing_ran(checked):
    RAN.clear()


@task()
def steps_plain(value, more=2):
    RAN.append(value)
    return [value, more]


def ran_of(run):
    return [json.loads(event.payload) for event in events(run, "task.completed")]


def test_a_result_is_recorded_with_the_name_and_the_input_of_its_call():
    @workflow(version="1")
    def steps_flow(order):
        return steps_plain(order)

    run = begin(steps_flow, "A")
    recorded = ran_of(run)[0]
    assert (recorded["name"], recorded["result"]) == ("steps_plain", ["A", 2])
    assert len(recorded["input"]) == 24
    assert "args" not in recorded  # nothing will need them


def test_a_default_that_is_given_or_left_out_is_the_same_call():
    @workflow(name="steps_defaults", version="1")
    def first(order):
        steps_plain("a")
        interrupt("Go on?")

    run = begin(first)

    @workflow(name="steps_defaults", version="1")
    def second(order):
        steps_plain("a", more=2)
        interrupt("Go on?")

    assert go(run).status == "waiting"
    assert RAN == ["a"]


def test_a_recorded_payload_is_canonical_whatever_the_name():
    @task(name='odd "name" \u00e9')
    def oddly_named(value):
        return value

    @workflow(version="1")
    def steps_odd_name(order):
        return oddly_named({"b": 1, "a": 2})

    run = begin(steps_odd_name)
    text = events(run, "task.completed")[0].payload
    assert text == canonical.dumps(json.loads(text))


def test_a_short_back_off_is_slept_and_a_long_one_is_stored():
    @task(retry=Retry(attempts=4, initial=0.01, jitter=0))
    def fails_twice(value):
        RAN.append(value)
        if len(RAN) < 3:
            raise ConnectionError("away")
        return len(RAN)

    @workflow(version="1")
    def steps_short(order):
        return fails_twice(order)

    run = begin(steps_short)
    assert output(run) == 3
    assert types(run).count("task.retrying") == 2
    assert len(events(run, "lease.acquired")) == 1


def test_the_time_budget_counts_the_waits_between_claims(clock):
    """E20: an hour of trying in all, stored waits included."""

    @task(retry=Retry(attempts=100, initial=60, factor=1, jitter=0, budget=150))
    def never(value):
        RAN.append(value)
        raise Retryable("away")

    @workflow(version="1")
    def steps_budget(order):
        return never(order)

    run = begin(steps_budget)
    for _ in range(5):
        clock.forward(61)
        run = go(run)
    assert run.status == "failed"
    assert len(RAN) == 3


def test_only_the_listed_errors_are_tried_again():
    @task(retry=Retry(on=(ConnectionError,)))
    def breaks(value):
        RAN.append(value)
        raise ValueError("no")

    @workflow(version="1")
    def steps_on(order):
        return breaks(order)

    run = begin(steps_on)
    assert (run.status, run.reason, len(RAN)) == ("failed", "no", 1)


def flushed_after(run_of):
    """Whether the record was on disk when the next line of the body ran."""
    seen = []

    @workflow(version="1")
    def steps_flushing(order):
        run_of()
        seen.append(value_of("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"))

    begin(steps_flushing)
    return seen[0]


@task(durable="flush")
def steps_flushed(value):
    return value


@task()
def steps_expensive(value):
    time.sleep(0.06)
    return value


def test_a_flushed_or_expensive_task_is_on_disk_before_the_body_goes_on():
    """Three tries: the database writes to its log for reasons of its own, too."""
    assert any(flushed_after(lambda: steps_flushed(1)) for _ in range(3))
    assert any(flushed_after(lambda: steps_expensive(1)) for _ in range(3))


def test_a_cheap_task_does_not_wait_for_the_disk():
    """Five tries: the database's own writer may come first now and then."""
    assert not all(flushed_after(lambda: steps_plain(1)) for _ in range(5))


def test_a_setting_and_a_workflow_opt_out_of_relaxed_commits(settings):
    @workflow(version="1", durable="flush")
    def steps_strict(order):
        steps_plain(1)
        return value_of("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")

    assert any(output(begin(steps_strict)) for _ in range(3))
    settings.DURABLE = {**settings.DURABLE, "RELAXED_COMMITS": False}
    assert any(flushed_after(lambda: steps_plain(1)) for _ in range(3))


# Atomic -------------------------------------------------------------------------------------------


@task(atomic=True)
def steps_atomic(order):
    make_message(aggregate_id=order)
    RAN.append(order)
    return order


@workflow(version="1")
def steps_stores(order):
    return steps_atomic(order)


def test_rows_and_record_commit_together():
    run = begin(steps_stores, "A-1")
    assert output(run) == "A-1"
    both = value_of(
        "SELECT message.xmin = event.xmin FROM durable_outboxmessage AS message, durable_event AS"
        " event WHERE event.type = 'task.completed'"
    )
    assert both is True
    assert OutboxMessage.objects.count() == 1


def test_a_result_that_cannot_be_stored_takes_the_rows_with_it():
    """S04."""

    @task(atomic=True)
    def stores_a_set(order):
        make_message(aggregate_id=order)
        return {1, 2}

    @workflow(version="1")
    def steps_stores_a_set(order):
        return stores_a_set(order)

    assert begin(steps_stores_a_set, "A-1").status == "failed"
    assert not OutboxMessage.objects.exists()


def test_a_deferred_constraint_that_fails_takes_the_record_with_it():
    """Nothing may fail after the fence was checked."""

    @task(atomic=True, retry=Retry(attempts=1))
    def breaks_a_constraint(order):
        person = get_user_model()(id=10**6, username="nobody")
        person.groups.through.objects.create(
            user_id=person.id, group_id=Group.objects.create(name="g").id
        )

    @workflow(version="1")
    def steps_breaks(order):
        return breaks_a_constraint(order)

    run = begin(steps_breaks)
    assert (run.status, types(run).count("task.completed")) == ("failed", 0)
    assert "IntegrityError" in payloads(run, "task.failed")[0]["error"]["kind"]
    assert not Group.objects.exists()


def test_an_atomic_task_may_not_write_to_another_database(settings):
    """Design 6: that write would commit apart from the record."""
    other = {**connections["default"].settings_dict}
    connections.databases["other"] = other

    @task(atomic=True, retry=Retry(attempts=1))
    def writes_elsewhere(order):
        with connections["other"].cursor() as cursor:
            cursor.execute("SELECT 1")

    @workflow(version="1")
    def steps_elsewhere(order):
        return writes_elsewhere(order)

    try:
        run = begin(steps_elsewhere)
    finally:
        connections["other"].close()
        del connections.databases["other"]
        del connections["other"]
    assert run.status == "failed"


def test_a_savepoint_that_the_body_rolls_back_is_only_its_own():
    @task(atomic=True)
    def partly(order):
        make_message(aggregate_id="kept")
        with transaction.atomic():
            make_message(aggregate_id="dropped")
            transaction.set_rollback(True)

    @workflow(version="1")
    def steps_partly(order):
        return partly(order)

    run = start(steps_partly)
    go(run)
    assert fresh(run).status == "succeeded"
    assert [message.aggregate_id for message in OutboxMessage.objects.all()] == ["kept"]
