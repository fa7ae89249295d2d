"""The same key is the same action: once, with the same request, whoever meets it again (P05)."""

import pytest

from approvals.models import Approval
from durable import KeyCompensated, KeyReused, Retryable, effects, interrupt, runs, task, workflow
from durable.models import IdempotencyRecord
from tests.approvals.miniature import say
from tests.crashes import crash
from tests.scenario import (
    answer,
    at_once,
    begin,
    can_no_longer_land,
    execute,
    fresh,
    go,
    output,
    payloads,
    record,
    start,
    take_over,
    types,
    wake,
)
from tests.shop import pay, pay_blind, pay_forgetful, service, ship

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def keys_pays(order):
    try:
        return pay(order["id"], order["amount"])["id"]
    except (KeyReused, KeyCompensated) as error:
        return type(error).__name__


@workflow(version="1")
def keys_pays_then_fails(order):
    pay(order["id"], order["amount"])
    raise ValueError("out of stock")


@workflow(version="1")
def keys_pays_blind(order):
    return pay_blind(order["id"])["id"]


def order(amount="10", id="A-1"):
    return {"id": id, "amount": amount}


# Meeting a key that succeeded --------------------------------------------------------------------


def test_a_second_run_with_the_same_request_gets_the_stored_response_and_sends_nothing():
    begin(keys_pays, order())
    run = begin(keys_pays, order())
    assert output(run) == "r1"
    assert service.calls == ["A-1:pay"]
    assert payloads(run, "external.completed")[0]["reused"] is True


def test_a_second_call_in_the_same_run_gets_the_stored_response():
    @workflow(version="1")
    def pays_twice(order):
        return [pay(order, "10")["id"], pay(order, "10")["id"]]

    run = begin(pays_twice, "A-1")
    assert output(run) == ["r1", "r1"]
    assert service.calls == ["A-1:pay"]
    assert [bool(told.get("reused")) for told in payloads(run, "external.completed")] == [
        False,
        True,
    ]


def test_another_amount_under_the_same_key_is_refused_loudly():
    """Invariant 6."""
    begin(keys_pays, order("10"))
    run = begin(keys_pays, order("11"))
    assert output(run) == "KeyReused"
    assert service.done == [("A-1:pay", "10")]
    assert "external.refused" in types(run)


def test_what_another_run_did_is_not_undone_by_the_one_that_reused_it():
    begin(keys_pays, order())

    run = begin(keys_pays_then_fails, order())
    assert run.status == "failed"
    assert service.calls == ["A-1:pay"]
    assert payloads(run, "run.failed")[0]["undone"] == []


def test_another_tenant_has_keys_of_its_own():
    begin(keys_pays, order(), tenant="one")
    run = begin(keys_pays, order("11"), tenant="two")
    assert output(run) == "r2"
    assert {r.tenant for r in IdempotencyRecord.objects.all()} == {"one", "two"}


# After it was undone -----------------------------------------------------------------------------


def test_a_charge_that_was_refunded_is_refused_when_the_order_starts_again():
    """P05: never goods unpaid, never a fresh charge under an old key."""
    failed = begin(keys_pays_then_fails, order())
    assert (failed.status, record(failed, operation="pay").status) == ("failed", "compensated")
    run = begin(keys_pays, order())
    assert output(run) == "KeyCompensated"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]


def test_a_new_generation_pays_anew_under_a_key_of_its_own():
    """P05."""
    begin(keys_pays_then_fails, order())
    run = begin(keys_pays, order(), generation=2)
    assert output(run) == "r3"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo", "A-1:pay:g2"]


def test_the_undo_of_a_generation_has_its_key_too():
    begin(keys_pays_then_fails, order(), generation=3)
    assert service.keys() == ["A-1:pay:g3", "A-1:pay:undo:g3"]


# While another run holds it ----------------------------------------------------------------------


def test_a_key_that_another_live_run_holds_parks_and_the_holders_success_wakes_it():
    """P05."""
    service.then("silent")
    holder = begin(keys_pays_blind, order())
    run = begin(keys_pays_blind, order())
    assert (run.status, run.waiting_for) == ("waiting", "record")
    assert payloads(run, "external.busy")[0]["held_by"] == str(holder.id)
    assert wake(run).status == "waiting"
    assert types(fresh(run)).count("external.busy") == 1
    effects.resolve_happened(
        record(holder).operation_id, resource_id="r1", actor="user:oscar", reason="seen"
    )
    assert fresh(run).wake_at is not None  # poked
    assert output(go(run)) == "r1"
    assert output(go(holder)) == "r1"
    assert service.calls == ["A-1:blind"]


def test_a_run_that_waits_for_a_running_call_goes_on_when_the_call_ends():
    """P05."""
    second = start(keys_pays, order())
    original = service.do

    def do(key, what):
        if what == "10" and not waited:
            waited.append(fresh(at_once(lambda: go(second))[0]).waiting_for)
        return original(key, what)

    waited: list[str] = []
    service.do = do  # type: ignore[method-assign]
    try:
        first = begin(keys_pays, order())
    finally:
        del service.do
    assert (output(first), waited) == ("r1", ["record"])
    assert fresh(second).wake_at is not None
    assert output(go(second)) == "r1"
    assert service.calls == ["A-1:pay"]


def test_two_runs_that_start_the_same_action_at_once_do_it_once():
    """P02: one that parks while the other's outcome is being stored is not left behind."""
    for round in range(10):
        started = [start(keys_pays, order(id=f"A-{round}")) for _ in range(3)]
        at_once(*[lambda run=run: go(run) for run in started])
        for run in started:
            run = fresh(run)
            assert output(go(run) if run.status == "waiting" else run) == f"r{round + 1}"
    assert len(service.calls) == 10


def test_a_key_that_failed_under_a_live_run_is_not_taken_from_it():
    service.then("busy")
    holder = begin(keys_pays, order())
    assert (holder.waiting_for, record(holder).status) == ("retry", "failed")
    run = begin(keys_pays, order())
    assert run.waiting_for == "record"
    assert service.calls == ["A-1:pay"]


def test_a_key_that_failed_under_a_run_that_ended_is_taken_over_with_the_same_request():
    """P05."""
    service.then("refused")
    failed = begin(keys_pays, order())
    assert failed.status == "failed"
    run = begin(keys_pays, order())
    assert output(run) == "r1"
    assert record(run).attempt == 2
    assert IdempotencyRecord.objects.count() == 1


def test_a_key_that_failed_keeps_its_request():
    """Invariant 6: the bound hash stays."""
    service.then("refused")
    begin(keys_pays, order("10"))
    assert output(begin(keys_pays, order("11"))) == "KeyReused"
    assert service.keys() == []


def test_a_waiting_run_is_woken_when_the_holder_ends_without_success():
    """Poked by the end of the other run; it takes the key over."""
    service.then("busy")
    holder = begin(keys_pays, order())
    run = begin(keys_pays, order())
    runs.cancel(holder.id, actor="user:oscar", reason="duplicate")
    assert go(holder).status == "cancelled"
    assert fresh(run).wake_at is not None
    assert output(go(run)) == "r1"


# Approvals and edits -----------------------------------------------------------------------------


def test_an_order_that_was_rejected_can_be_corrected_and_started_again(large_payments_ask):
    """P05: the void intent does not hold the key; the corrected one needs its own approval."""
    first = begin(keys_pays, order("6000"))
    say(Approval.objects.get(run=first), "reject", reason="too much")
    assert go(first).status == "failed"
    assert record(first).status == "void"
    second = begin(keys_pays, order("5500"))
    assert second.waiting_for == "approval"
    say(Approval.objects.get(run=second), "approve")
    assert output(go(second)) == "r1"
    assert service.done == [("A-1:pay", "5500")]


def test_an_amount_edited_before_the_first_call_binds_the_new_amount():
    """P05, invariant 6: the hash binds at the first `running`."""
    amounts = ["10"]

    @task()
    def read_amount(order):
        return amounts[0]

    @workflow(version="1")
    def pays_what_is_read(order):
        return pay(order, read_amount(order))["id"]

    run = start(pays_what_is_read, "A-1")
    with crash(at="durable_effect_begin", when="before"):
        go(run)
    with pytest.raises(IdempotencyRecord.DoesNotExist):
        record(run)
    assert output(take_over(run)) == "r1"
    assert service.done == [("A-1:pay", "10")]


# Keys that the service forgets -------------------------------------------------------------------


@workflow(version="1")
def keys_pays_forgetful(order):
    return pay_forgetful(order["id"])["id"]


def aged(run):
    """Everything about the record happened two hours ago."""
    execute(
        "UPDATE durable_idempotencyrecord SET started_at = started_at - interval '2 h'"
        " WHERE run_id = %s",
        run.id,
    )


def test_a_key_older_than_the_service_remembers_is_not_sent_again_without_a_person(clock):
    """P05."""
    service.then(Retryable("busy"))
    run = begin(keys_pays_forgetful, order())
    assert run.waiting_for == "retry"
    clock.forward(7200)
    run = go(run)
    assert (run.status, run.code) == ("blocked", "KEY_EXPIRED")
    assert service.calls == ["A-1:forgotten"]
    runs.resume(run.id, actor="user:oscar", reason="they have nothing under this key")
    assert output(go(run)) == "r1"


def test_a_key_that_the_service_still_remembers_is_sent_again(clock):
    service.then(Retryable("busy"))
    run = begin(keys_pays_forgetful, order())
    clock.forward(61)
    assert output(go(run)) == "r1"
    assert service.calls == ["A-1:forgotten"] * 2


def test_a_person_who_says_that_it_did_not_happen_does_not_revive_an_old_key():
    """P05: that nothing happened says nothing about what the service still remembers."""
    service.then("lost")
    run = begin(keys_pays_forgetful, order())
    can_no_longer_land(run)
    aged(run)
    effects.resolve_not_happened(
        record(run).operation_id, actor="user:oscar", reason="they looked it up"
    )
    run = go(run)
    assert (run.status, run.code) == ("blocked", "KEY_EXPIRED")
    assert len(service.calls) == 1


def test_the_log_shows_which_key_was_sent_with_which_request():
    run = begin(keys_pays, order())
    told = payloads(run, "external.requested")[0]
    assert (told["key"], told["operation"]) == ("A-1:pay", "pay")
    assert told["hash"] == record(run).request_hash


def test_a_second_effect_with_its_own_key_is_another_action():
    @workflow(version="1")
    def pays_and_ships(order):
        answered = interrupt("Go on?")
        return [pay(order, "10")["id"], ship(order)["id"], answered]

    run = begin(pays_and_ships, "A-1")
    answer(run, 1)
    assert output(go(run)) == ["r1", "r2", 1]
