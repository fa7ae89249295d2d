"""Keys under fire: guarded, shared, forgotten, or never known to the service (P05, P07)."""

import threading

import pytest

from approvals.models import Approval
from durable import (
    ApprovalExpired,
    ApprovalRejected,
    Failure,
    Happened,
    KeyCompensated,
    Retry,
    Retryable,
    effect,
    effects,
    gather,
    runs,
    workflow,
)
from durable.models import IdempotencyRecord
from tests.approvals.miniature import say
from tests.scenario import (
    begin,
    go,
    output,
    payloads,
    record,
    types,
    value_of,
)
from tests.shop import pay, pay_blind, pay_forgetful, service

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def hostile_keys_pays(amount):
    try:
        return pay("A-1", amount)["id"]
    except (ApprovalRejected, ApprovalExpired, KeyCompensated, Failure) as refused:
        return type(refused).__name__


@workflow(version="1")
def hostile_keys_pays_then_fails(amount):
    pay("A-1", amount)
    raise ValueError("out of stock")


def asked(run):
    return Approval.objects.get(run=run, status="pending")


def approved(run):
    say(asked(run), "approve")
    return go(run)


def refuse(run, refusal, clock):
    """Say no, or let nobody say anything in time."""
    assert run.waiting_for == "approval"
    if refusal == "ApprovalRejected":
        say(asked(run), "reject")
    else:
        clock.forward(3601)


# Guarded keys ------------------------------------------------------------------------------------


def test_a_guarded_charge_that_was_refunded_is_refused_before_anybody_is_asked(large_payments_ask):
    """P05."""
    first = approved(begin(hostile_keys_pays_then_fails, "6000"))
    assert record(first, operation="pay").status == "compensated"
    run = begin(hostile_keys_pays, "6000")
    assert output(run) == "KeyCompensated"
    assert "approval.requested" not in types(run)
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]


@pytest.fixture
def declined(large_payments_ask):
    """A large payment was approved, and the bank said no: its record is `failed`."""
    service.then("refused")
    run = approved(begin(hostile_keys_pays, "6000"))
    assert (output(run), record(run).status) == ("Failure", "failed")
    return run


@pytest.mark.parametrize("refusal", ["ApprovalRejected", "ApprovalExpired"])
def test_a_refusal_of_a_charge_that_failed_before_reaches_the_body(refusal, declined, clock):
    """P05: what was sent before stays failed; nothing is sent."""
    run = begin(hostile_keys_pays, "6000")
    refuse(run, refusal, clock)
    assert output(go(run)) == refusal
    assert IdempotencyRecord.objects.get().status == "failed"
    assert service.calls == ["A-1:pay"]


@pytest.mark.parametrize("refusal", ["ApprovalRejected", "ApprovalExpired"])
def test_a_retry_whose_permit_lapsed_can_be_refused(refusal, large_payments_ask, clock):
    """P05: the record is `failed` under the very run that asks again."""
    service.then("busy")
    run = approved(begin(hostile_keys_pays, "6000"))
    assert (run.waiting_for, record(run).status) == ("retry", "failed")
    clock.forward(301)
    run = go(run)
    refuse(run, refusal, clock)
    assert output(go(run)) == refusal
    assert service.calls == ["A-1:pay"]


@workflow(version="1")
def hostile_keys_twins(amount):
    return gather(lambda: pay("A-1", amount)["id"], lambda: pay("A-1", amount)["id"])


def test_of_two_branches_with_one_guarded_key_one_sends_and_the_other_reuses(
    large_payments_ask, monkeypatch
):
    """P05: the second meets the key while the first one's call is on its way."""
    run = begin(hostile_keys_twins, "6000")
    original = service.do

    def do(key, what):
        for _ in range(1000):
            if "external.busy" in types(run):
                break
            threading.Event().wait(0.005)
        return original(key, what)

    monkeypatch.setattr(service, "do", do)
    run = approved(run)
    assert run.status == "succeeded" or is_due(run)
    assert output(go(run) if run.status == "waiting" else run) == ["r1", "r1"]
    assert service.calls == ["A-1:pay"]


def test_two_branches_with_one_guarded_key_wait_while_its_outcome_is_unknown(
    large_payments_ask, clock
):
    """P05, invariant 5."""
    service.then("silent")
    service.lookup_then("unknown")
    run = approved(begin(hostile_keys_twins, "6000"))
    assert (run.status, service.calls) == ("waiting", ["A-1:pay"])
    clock.forward(3600)
    run = go(run)
    assert output(go(run) if run.status == "waiting" else run) == ["r1", "r1"]
    assert service.calls == ["A-1:pay"]


def is_due(run):
    return value_of("SELECT wake_at <= clock_timestamp() FROM durable_run WHERE id = %s", run.id)


# Keys of others ----------------------------------------------------------------------------------


@workflow(version="1")
def hostile_keys_pays_blind(order):
    return pay_blind(order)["id"]


@workflow(version="1")
def hostile_keys_pays_both(order):
    return gather(lambda: pay_blind("A-1")["id"], lambda: pay_blind("A-2")["id"])


@pytest.mark.parametrize("first", ["A-1", "A-2"])
def test_branches_that_wait_for_two_keys_go_on_whichever_is_settled_first(first, clock):
    """P05: a run can name only one record, so it also looks by itself."""
    service.then("silent", "silent")
    holders = {order: begin(hostile_keys_pays_blind, order) for order in ("A-1", "A-2")}
    run = begin(hostile_keys_pays_both)
    for order in sorted(holders, key=lambda order: order != first):
        effects.resolve_happened(
            record(holders[order]).operation_id,
            resource_id=order,
            actor="user:oscar",
            reason="seen",
        )
        clock.forward(16)
        assert is_due(run)
        run = go(run)
        assert len(payloads(run, "external.completed")) == 1 + (order != first)
    assert run.status == "succeeded"
    assert service.calls == ["A-1:blind", "A-2:blind"]


# Keys that the service does not have -------------------------------------------------------------


@effect(
    key="{order}:nowhere",
    timeout=20,
    settle=20,
    reconcile=lambda call: service.find(call.key),
    retry=Retry(attempts=4),
)
def hostile_keys_lost(call, order):
    return service.do(call.key, "parcel")


def test_an_action_that_the_service_never_has_stops_after_its_tries_until_a_person_resumes(clock):
    """Invariant 5: it is not sent for ever, and nobody has to give it up."""

    @workflow(version="1")
    def hostile_keys_ships(order):
        return hostile_keys_lost(order)["id"]

    service.then(*["lost"] * 4)
    run = begin(hostile_keys_ships, "A-1")
    for _ in range(12):
        clock.forward(3600)
        run = go(run)
    assert (run.status, run.code) == ("blocked", "RETRIES_EXHAUSTED")
    assert service.calls == ["A-1:nowhere"] * 4
    runs.resume(run.id, actor="user:oscar", reason="the carrier is back")
    assert output(go(run)) == "r1"
    assert service.calls == ["A-1:nowhere"] * 5


def test_eight_tries_in_quick_succession_are_eight_tries():
    """P07: tries that are not even parked are still counted by the author's own number."""

    @effect(
        name="hostile_keys_hurries",
        key="{order}:hurries",
        timeout=20,
        settle=20,
        retry=Retry(attempts=8, initial=0.01, factor=1, jitter=0),
    )
    def hurries(call, order):
        if len(service.calls) < 7:
            service.calls.append(call.key)
            raise Retryable("busy")
        return service.do(call.key, "at last")

    @workflow(version="1")
    def hostile_keys_hurried(order):
        return hurries(order)["id"]

    assert output(begin(hostile_keys_hurried, "A-1")) == "r1"
    assert service.calls == ["A-1:hurries"] * 8


# Keys that the service has forgotten -------------------------------------------------------------


@workflow(version="1")
def hostile_keys_forgets(order):
    try:
        return pay_forgetful(order)["id"]
    except Failure:
        return "declined"


def test_a_forgotten_key_is_not_sent_again_by_a_run_that_takes_it_over(clock):
    """P05: the key is as old as its first sending, whoever sent it."""
    service.then("refused")
    assert output(begin(hostile_keys_forgets, "A-1")) == "declined"
    clock.forward(7200)
    run = begin(hostile_keys_forgets, "A-1")
    assert (run.status, run.code) == ("blocked", "KEY_EXPIRED")
    assert service.calls == ["A-1:forgotten"]
    runs.resume(run.id, actor="user:oscar", reason="they have nothing under this key")
    assert output(go(run)) == "r1"


@effect(
    key="{order}:kept",
    timeout=20,
    settle=20,
    key_valid_for=3600,
    reconcile=lambda call: Happened(result="r1"),
)
def hostile_keys_kept(call, order):
    return service.do(call.key, "kept")


def test_a_person_who_resumes_does_not_outvote_a_service_that_says_it_happened(clock):
    """P05."""

    @workflow(version="1")
    def hostile_keys_keeps(order):
        return hostile_keys_kept(order)

    service.then("busy")
    run = begin(hostile_keys_keeps, "A-1")
    clock.forward(7200)
    run = go(run)
    assert (run.status, run.code) == ("blocked", "KEY_EXPIRED")
    runs.resume(run.id, actor="user:oscar", reason="please try again")
    run = go(run)
    assert (run.status, run.code) == ("blocked", "KEY_EXPIRED")
    assert service.calls == ["A-1:kept"]
