"""Questions to people, and time."""

from datetime import datetime, timedelta

import pytest

from durable import InterruptExpired, InvalidValue, interrupt, sleep, workflow
from durable.models import Interrupt
from tests.scenario import answer, begin, events, go, output, payloads, types, value_of, wake

pytestmark = pytest.mark.usefixtures("checked")


def test_a_question_is_stored_with_its_schema_and_deadline_as_it_is_told():
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}

    @workflow(version="1")
    def waits_schema(order):
        return interrupt("Is it well?", schema=schema, timeout=timedelta(hours=1))

    run = begin(waits_schema)
    asked, told = Interrupt.objects.get(run=run), payloads(run, "interrupt.waiting")[0]
    assert (asked.question, asked.status, asked.task_key) == ("Is it well?", "open", "1")
    assert asked.schema == '{"properties":{"ok":{"type":"boolean"}},"type":"object"}'
    assert (told["interrupt"], told["question"], told["schema"]) == (
        str(asked.id),
        "Is it well?",
        schema,
    )
    assert datetime.fromisoformat(told["expires_at"]) == asked.expires_at == run.wake_at
    left = (asked.expires_at - value_of("SELECT clock_timestamp()")).total_seconds()
    assert 3590 < left <= 3600


@pytest.mark.parametrize("timeout", [None, 60, 60.0, timedelta(minutes=1)])
def test_a_timeout_is_seconds_or_a_timedelta_or_none(timeout):
    @workflow(version="1")
    def waits_timeout(order):
        return interrupt("Well?", timeout=timeout)

    run = begin(waits_timeout)
    assert (run.wake_at is None) == (timeout is None)


def test_a_question_asked_twice_is_two_questions():
    @workflow(version="1")
    def waits_twice(order):
        return [interrupt("Well?"), interrupt("Well?")]

    run = begin(waits_twice)
    answer(run, 1)
    run = go(run)
    answer(run, 2)
    assert output(go(run)) == [1, 2]
    assert Interrupt.objects.filter(run=run).count() == 2


def test_an_expiry_is_recorded_once_and_replayed(clock):
    @workflow(version="1")
    def waits_expires(order):
        try:
            interrupt("Well?", timeout=60)
        except InterruptExpired as error:
            return [type(error).__name__, interrupt("And now?")]

    run = begin(waits_expires)
    clock.forward(61)
    run = go(run)
    assert run.waiting_for == "answer"
    answer(run, "well")
    assert output(go(run)) == ["InterruptExpired", "well"]
    assert types(run).count("interrupt.expired") == 1


def test_a_sleep_records_its_end_and_is_not_slept_twice(clock):
    @workflow(version="1")
    def waits_sleeps(order):
        sleep(timedelta(hours=1))
        return interrupt("Awake?")

    run = begin(waits_sleeps)
    assert datetime.fromisoformat(payloads(run, "timer.started")[0]["due"]) == run.wake_at
    clock.forward(3601)
    run = go(run)
    answer(run, "yes")
    assert output(go(run)) == "yes"
    assert len(events(run, "timer.fired")) == 1


def test_a_sleep_of_nothing_goes_on_at_once():
    @workflow(version="1")
    def waits_nothing(order):
        sleep(0)
        return "awake"

    assert output(begin(waits_nothing)) == "awake"


@pytest.mark.parametrize("seconds", [3e11, timedelta(days=3651), -1, timedelta(seconds=-1)])
def test_a_time_that_no_clock_reaches_is_the_bodys_own_error(seconds):
    """Hole 21: the date would overflow where only the engine sees it, in every claim again."""

    @workflow(version="1")
    def waits_too_long(order):
        paths = []
        for wait in (lambda: interrupt("Well?", timeout=seconds), lambda: sleep(seconds)):
            try:
                wait()
            except InvalidValue as error:
                paths.append(error.path)
        return paths

    assert output(begin(waits_too_long)) == ["timeout", "sleep"]


def test_a_question_with_no_time_to_answer_is_refused_and_ten_years_are_enough():
    """Hole 21."""

    @workflow(version="1")
    def waits_bounds(order):
        try:
            interrupt("Well?", timeout=0)
        except InvalidValue:
            interrupt("Well?", timeout=timedelta(days=3650))

    assert begin(waits_bounds).waiting_for == "answer"


def test_another_duration_at_the_same_place_is_other_code():
    """E08."""

    @workflow(name="waits_longer", version="1")
    def first(order):
        sleep(60)

    run = begin(first)

    @workflow(name="waits_longer", version="1")
    def second(order):
        sleep(61)

    assert wake(run).code == "NONDETERMINISM"
