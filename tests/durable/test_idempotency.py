"""The executor's side of an outside action: intent, call, outcome, and what becomes of failures."""

import pytest

from durable import Failure, Retry, Retryable, effect, interrupt, workflow
from durable.errors import BlockCode
from durable.models import IdempotencyRecord
from tests.crashes import crash
from tests.scenario import (
    answer,
    begin,
    events,
    go,
    output,
    past_the_triggers,
    payloads,
    record,
    start,
    take_over,
    types,
)

pytestmark = pytest.mark.usefixtures("checked")

CALLS: list[dict[str, object]] = []
ERRORS: list[BaseException] = []


class LimitReached(Exception):
    """How this service says that it did not happen."""


@pytest.fixture(autouse=True)
def nothing_called(checked):
    CALLS.clear()
    ERRORS.clear()


@effect(
    key="{order}:order",
    operation="buy",
    timeout=20,
    settle=10,
    failures=(LimitReached,),
    retry=Retry(attempts=3, initial=0, jitter=0),
)
def idempotency_buy(call, order, note=""):
    stored = IdempotencyRecord.objects.get(operation_id=call.operation_id)
    CALLS.append({"key": call.key, "fence": call.fence, "status": stored.status})
    if ERRORS:
        raise ERRORS.pop(0)
    call.resource(f"resource of {order}")
    return {"note": note}


@workflow(version="1")
def idempotency_buys(order):
    try:
        return idempotency_buy(order)
    except (Failure, LimitReached, Retryable) as error:
        return [type(error).__name__, str(error)]


def test_the_intent_is_stored_before_the_call_with_everything_about_it():
    """Invariant 4."""
    run = begin(idempotency_buys, "A-1")
    assert output(run) == {"note": ""}
    assert CALLS == [{"key": "A-1:order", "fence": 1, "status": "running"}]
    stored = record(run)
    assert (stored.operation, stored.key, stored.attempt, stored.epoch) == (
        "buy",
        "A-1:order",
        1,
        1,
    )
    assert stored.sent_request == '{"note":"","order":"A-1"}'
    assert stored.call_deadline is not None
    assert stored.started_at is not None
    assert stored.settle_until is not None
    assert (stored.call_deadline - stored.started_at).total_seconds() == pytest.approx(20, abs=0.5)
    assert (stored.settle_until - stored.call_deadline).total_seconds() == pytest.approx(
        10, abs=0.5
    )


def test_an_outside_id_is_kept_at_once_even_if_the_call_never_ends():
    run = start(idempotency_buys, "A-1")
    with crash(at="durable_effect_end", when="before"):
        go(run)
    run = take_over(run)
    assert (run.status, record(run).external_resource_id) == ("blocked", "resource of A-1")
    assert payloads(run, "external.resource")[0]["resource"] == "resource of A-1"


def test_an_outside_id_that_cannot_be_stored_makes_the_outcome_unknown():
    """S01: whatever was done before that is not known to have been undone."""

    @effect(key="{order}:odd")
    def idempotency_odd_resource(call, order):
        call.resource("a\x00b")

    @workflow(version="1")
    def idempotency_odd(order):
        return idempotency_odd_resource(order)

    run = begin(idempotency_odd, "A-1")
    assert (run.status, run.code) == ("blocked", BlockCode.EFFECT_UNKNOWN)


def test_a_declared_failure_is_final_and_the_body_sees_it():
    ERRORS.append(LimitReached("above the limit"))
    run = begin(idempotency_buys, "A-1")
    assert output(run) == ["LimitReached", "above the limit"]
    assert (record(run).status, len(CALLS)) == ("failed", 1)
    assert payloads(run, "external.failed")[0]["final"] is True


def test_a_retryable_answer_is_tried_again_under_the_same_key_until_the_tries_are_over():
    ERRORS.extend(Retryable("busy") for _ in range(5))
    run = begin(idempotency_buys, "A-1")
    assert output(run) == ["Retryable", "busy"]
    assert [call["key"] for call in CALLS] == ["A-1:order"] * 3
    assert record(run).attempt == 3
    assert [told["final"] for told in payloads(run, "external.failed")] == [False, False, True]


def test_a_retryable_answer_followed_by_a_success_is_a_success():
    ERRORS.append(Retryable("busy"))
    run = begin(idempotency_buys, "A-1")
    assert output(run) == {"note": ""}
    assert (record(run).status, record(run).error) == ("succeeded", None)


@pytest.mark.parametrize(
    "error",
    [TimeoutError("no answer"), ConnectionResetError(), ValueError("what?"), AssertionError()],
)
def test_any_other_error_means_that_nobody_knows(error):
    """Invariant 5: never `failed`."""
    ERRORS.append(error)
    run = begin(idempotency_buys, "A-1")
    assert (run.status, run.code) == ("blocked", BlockCode.EFFECT_UNKNOWN)
    assert (record(run).status, len(CALLS)) == ("unknown", 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_a_worker_that_is_stopped_during_a_call_leaves_it_for_the_next_claim(error):
    ERRORS.append(error)
    run = start(idempotency_buys, "A-1")
    with pytest.raises(type(error)):
        go(run)
    assert record(run).status == "running"
    run = take_over(run)
    assert (record(run).status, len(CALLS)) == ("unknown", 1)


def test_start_and_outcome_are_two_events_and_no_more():
    run = begin(idempotency_buys, "A-1")
    about = [event.type for event in events(run) if event.task_key == "1"]
    assert about == ["external.requested", "external.resource", "external.completed"]


def test_a_replay_asks_neither_the_service_nor_the_record():
    @workflow(version="1")
    def idempotency_waits(order):
        bought = idempotency_buy(order)
        interrupt("Go on?")
        return bought

    run = begin(idempotency_waits, "A-1")
    answer(run, True)
    assert output(go(run)) == {"note": ""}
    assert len(CALLS) == 1


def test_a_record_that_is_gone_blocks_the_run(clock):
    ERRORS.append(Retryable("busy", retry_after=60))
    run = begin(idempotency_buys, "A-1")
    assert run.waiting_for == "retry"
    past_the_triggers("DELETE FROM durable_idempotencyrecord")
    clock.forward(61)
    run = go(run)
    assert (run.status, run.code, len(CALLS)) == ("blocked", BlockCode.STATE_UNREADABLE, 1)


def test_the_fence_of_a_later_claim_is_higher(clock):
    """L01: a service that is told can refuse what comes late."""
    ERRORS.append(Retryable("busy", retry_after=60))
    run = begin(idempotency_buys, "A-1")
    clock.forward(61)
    assert output(go(run)) == {"note": ""}
    assert [call["fence"] for call in CALLS] == [1, 2]
    assert types(run).count("external.requested") == 2
