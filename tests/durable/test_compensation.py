"""Undoing, newest first: each undo an action of its own."""

from datetime import timedelta

import pytest

from approvals import policies
from approvals.models import Approval
from approvals.policies import Policy
from durable import (
    Failure,
    Retry,
    Retryable,
    effect,
    effects,
    interrupt,
    registry,
    runs,
    task,
    workflow,
)
from tests.approvals.miniature import say
from tests.crashes import crash
from tests.scenario import (
    begin,
    can_no_longer_land,
    go,
    payloads,
    record,
    start,
    take_over,
    types,
    wake,
)
from tests.shop import pay, service, ship

pytestmark = pytest.mark.usefixtures("checked")

UNDONE: list[object] = []
TROUBLE: list[Exception] = []


@pytest.fixture(autouse=True)
def nothing_undone(checked):
    UNDONE.clear()
    TROUBLE.clear()


def put_back(result, n):
    if TROUBLE:
        raise TROUBLE.pop(0)
    UNDONE.append((n, result))


@task(compensate=put_back, retry=Retry(attempts=2, initial=0, jitter=0))
def compensation_take(n):
    return n * 10


@workflow(version="1")
def compensation_takes(order):
    for n in (1, 2, 3):
        compensation_take(n)
    raise Failure("enough")


def test_steps_are_undone_newest_first_with_what_they_returned():
    run = begin(compensation_takes)
    assert (run.status, run.reason) == ("failed", "enough")
    assert UNDONE == [(3, 30), (2, 20), (1, 10)]
    undone = payloads(run, "run.failed")[0]["undone"]
    assert [(item["call"], item["name"]) for item in undone] == [
        ("3", "compensation_take"),
        ("2", "compensation_take"),
        ("1", "compensation_take"),
    ]


def test_one_that_fails_in_the_middle_is_left_and_the_older_ones_are_undone():
    TROUBLE.extend([ValueError("stuck"), ValueError("stuck")])
    run = begin(compensation_takes)
    assert UNDONE == [(2, 20), (1, 10)]
    left = payloads(run, "run.failed")[0]["left"]
    assert [(item["call"], item["why"]) for item in left] == [("3", "stuck")]


def test_an_undo_that_fails_once_is_tried_again():
    TROUBLE.append(Retryable("busy"))
    begin(compensation_takes)
    assert UNDONE == [(3, 30), (2, 20), (1, 10)]


def test_the_reason_of_the_failure_is_that_of_the_body_and_not_of_an_undo():
    TROUBLE.extend([ValueError("stuck")] * 2)
    run = begin(compensation_takes)
    assert run.reason == "enough"
    assert payloads(run, "compensation.started")[0]["error"]["message"] == "enough"


def test_a_crash_between_two_undos_undoes_each_once():
    run = start(compensation_takes)
    with crash(at="compensation_take:undo", nth=2):
        go(run)
    assert take_over(run).status == "failed"
    assert UNDONE == [(3, 30), (2, 20), (1, 10)]
    assert types(run).count("compensation.started") == 1


def test_a_run_that_succeeded_undoes_nothing():
    @workflow(version="1")
    def compensation_succeeds(order):
        return compensation_take(1)

    assert begin(compensation_succeeds).status == "succeeded"
    assert UNDONE == []


def test_an_undo_that_needs_a_person_waits_for_one(monkeypatch, large_payments_ask):
    """A compensation is an effect like any other: a policy may ask."""
    policies.register(
        Policy(
            name="refunds",
            effect="pay:undo",
            when=lambda parameters: True,
            decide_within=timedelta(hours=1),
            valid_for=timedelta(minutes=5),
            sentence="Refunds need another person",
        )
    )

    @workflow(version="1")
    def compensation_refunds(order):
        pay(order, "10")
        interrupt("Well?")

    run = begin(compensation_refunds, "A-1")
    runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
    run = go(run)
    assert (run.status, run.waiting_for) == ("waiting", "approval")
    approval = Approval.objects.get(run=run)
    assert approval.title == "Undo: Charge 10 USD to acme"
    say(approval, "approve")
    assert go(run).status == "cancelled"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]


def test_an_undo_that_is_rejected_is_left_for_a_person(large_payments_ask):
    policies.register(
        Policy(
            name="refunds",
            effect="pay:undo",
            when=lambda parameters: True,
            decide_within=timedelta(hours=1),
            valid_for=timedelta(minutes=5),
            sentence="Refunds need another person",
        )
    )

    @workflow(version="1")
    def compensation_refused(order):
        ship(order)
        pay(order, "10")
        raise Failure("enough")

    run = begin(compensation_refused, "A-1")
    say(Approval.objects.get(run=run), "reject", reason="keep it")
    run = go(run)
    assert run.status == "failed"
    told = payloads(run, "run.failed")[0]
    assert [item["name"] for item in told["left"]] == ["pay"]
    assert [item["name"] for item in told["undone"]] == ["ship"]
    assert record(run, operation="pay").status == "succeeded"


def test_what_a_person_said_happened_is_undone_too():
    @effect(key="{order}:blind2", compensate=lambda call, result: service.do(call.key, result))
    def compensation_blind(call, order):
        raise TimeoutError

    @workflow(version="1")
    def compensation_resolved(order):
        compensation_blind(order)
        raise Failure("enough")

    run = begin(compensation_resolved, "A-1")
    effects.resolve_happened(
        record(run).operation_id, resource_id="r9", actor="user:oscar", reason="seen"
    )
    run = go(run)
    assert run.status == "failed"
    assert service.done == [("A-1:blind2:undo", {"id": "r9"})]


def test_an_undo_that_a_person_said_happened_completes_the_original():
    @effect(key="{order}:half", compensate=lambda call: service.do(call.key, "undone"))
    def compensation_half(call, order):
        return "done"

    @workflow(version="1")
    def compensation_unknown_undo(order):
        compensation_half(order)
        raise Failure("enough")

    service.then("silent")
    run = begin(compensation_unknown_undo, "A-1")
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")
    undo = record(run, operation="compensation_half:undo")
    effects.resolve_happened(undo.operation_id, resource_id="r9", actor="user:oscar", reason="seen")
    run = go(run)
    assert run.status == "failed"
    assert record(run, operation="compensation_half").status == "compensated"
    assert service.keys() == ["A-1:half:undo"]


def undeclare(monkeypatch, kind, name):
    declared = getattr(registry, kind)
    monkeypatch.setattr(registry, kind, {k: v for k, v in declared.items() if k != name})


@workflow(version="1")
def compensation_pays(order):
    pay(order, "10")
    interrupt("Well?")


def unknown_and_cancelled(monkeypatch):
    service.then("silent")
    service.lookup_then("unknown")
    run = begin(compensation_pays, "A-1")
    assert record(run).status == "unknown"
    undeclare(monkeypatch, "_effects", "pay")
    runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
    return go(run)


def test_a_cancel_does_not_end_over_an_unknown_charge_that_no_app_declares(monkeypatch):
    """Hole 10."""
    run = unknown_and_cancelled(monkeypatch)
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")
    assert "no installed app declares" in run.reason


def test_it_ends_when_a_person_says_what_happened_or_the_effect_is_back(monkeypatch):
    """Hole 10."""
    with monkeypatch.context() as gone:
        run = unknown_and_cancelled(gone)
        can_no_longer_land(run)
        effects.resolve_happened(
            record(run).operation_id, resource_id="r9", actor="user:oscar", reason="in the bank"
        )
        run = go(run)
    assert run.status == "cancelled"
    left = payloads(run, "run.cancelled")[0]["left"]
    assert [(item["name"], item["why"]) for item in left] == [("pay", "manual")]


def test_an_unknown_undo_that_no_app_declares_blocks_too(monkeypatch):
    """Hole 10: whether the refund was paid is as open as whether the charge was."""
    run = begin(compensation_pays, "A-1")
    service.then("silent")
    service.lookup_then("unknown")
    runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
    run = go(run)
    assert record(run, operation="pay:undo").status == "unknown"
    undeclare(monkeypatch, "_effects", "pay")
    run = wake(run)
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")
    assert "'pay:undo'" in run.reason


def test_a_step_that_no_app_declares_any_more_is_left_for_a_person(monkeypatch):
    """Hole 10."""

    @workflow(version="1")
    def compensation_reserves(order):
        compensation_take(1)
        interrupt("Well?")

    run = begin(compensation_reserves)
    undeclare(monkeypatch, "_tasks", "compensation_take")
    runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
    told = payloads(go(run), "run.cancelled")[0]
    assert told["undone"] == []
    assert [(item["call"], item["name"], item["why"]) for item in told["left"]] == [
        ("1", "compensation_take", "no installed app declares it any more")
    ]
