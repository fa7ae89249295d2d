"""An action whose outcome nobody knows is never repeated blindly, and never given up too early."""

from datetime import datetime
from uuid import uuid4

import pytest
from django.db import transaction

from durable import conf, effects, inbox, interrupt, runs, sweeper, workflow
from durable.errors import InvalidValue, NotUnknown, RecordNotFound, TooEarly
from durable.models import IdempotencyRecord, uuid7
from tests.crashes import crash
from tests.scenario import (
    answer,
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
    value_of,
    wake,
)
from tests.shop import pay, pay_blind, pay_once, service, ship

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def unknown_pays(order):
    return pay(order, "10")["id"]


@workflow(version="1")
def unknown_pays_blind(order):
    return pay_blind(order)["id"]


@workflow(version="1")
def unknown_pays_once(order):
    return pay_once(order)["id"]


def died_while_calling(flow=unknown_pays):
    """A run whose worker stored the intent and died; its call may land or not."""
    run = start(flow, "A-1")
    with crash(at="durable_effect_begin"):
        go(run)
    return run


def ask_again(run):
    effects.ask_outside(record(run).operation_id, actor="user:oscar")
    return go(run)


def happened(run, resource_id="r9", **options):
    effects.resolve_happened(
        record(run).operation_id,
        resource_id=resource_id,
        actor="user:oscar",
        reason="seen in their console",
        **options,
    )


def did_not_happen(run):
    effects.resolve_not_happened(
        record(run).operation_id, actor="user:oscar", reason="they looked it up"
    )


# The service can be asked ------------------------------------------------------------------------


def test_a_call_that_landed_without_an_answer_is_found_and_not_repeated():
    """E03."""
    service.then("silent")
    assert output(begin(unknown_pays, "A-1")) == "r1"
    assert (service.calls, service.asked) == (["A-1:pay"], ["A-1:pay"])


def test_not_found_before_the_first_call_can_no_longer_land_is_still_unknown():
    """P03: the first charge lands after the question; there is no second one."""
    run = take_over(died_while_calling())
    assert (run.status, run.waiting_for, record(run).status) == ("waiting", "reconcile", "unknown")
    told = payloads(run, "external.reconciled")[0]
    assert told["outcome"] == "not_found"
    assert datetime.fromisoformat(told["until"]) == record(run).settle_until
    assert run.wake_at == record(run).settle_until
    service.do("A-1:pay", "10")  # the first call lands late
    assert output(ask_again(run)) == "r1"
    assert service.keys() == ["A-1:pay"]


def test_not_found_after_that_is_believed_and_sent_once_under_the_same_key():
    """P03, E03."""
    run = take_over(died_while_calling())
    can_no_longer_land(run)
    run = ask_again(run)
    assert output(run) == "r1"
    assert service.keys() == ["A-1:pay"]
    assert record(run).attempt == 2
    assert len(payloads(run, "external.requested")) == 2


def test_a_service_that_deduplicates_is_called_again_at_once():
    """Invariant 5: the same key, at a service that itself does a key once."""
    run = died_while_calling(unknown_pays_once)
    assert output(take_over(run)) == "r1"
    assert service.calls == ["A-1:dedup"]
    assert record(run).status == "succeeded"


def test_still_unknown_is_asked_again_with_growing_pauses_and_then_a_person_is_asked(clock):
    run = died_while_calling()
    service.lookup_then(*["unknown", "error"] * 10)
    pauses = []
    for _ in range(conf.reconcile_attempts()):
        run = take_over(run)
        if run.wake_at is None:
            break
        pauses.append((run.wake_at - value_of("SELECT clock_timestamp()")).total_seconds())
        clock.forward(pauses[-1] + 0.1)
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")
    assert len(service.asked) == conf.reconcile_attempts()
    assert pauses == sorted(pauses)
    assert pauses[-1] > 3 * pauses[0]
    assert service.calls == []


def test_a_person_may_have_a_blocked_action_asked_once_more():
    run = died_while_calling()
    service.lookup_then("unknown")
    run = take_over(run)
    service.lookup_then("unknown")
    run = ask_again(run)
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")  # they see that it did not help
    service.do("A-1:pay", "10")
    assert output(ask_again(run)) == "r1"


# Only a person can find out ----------------------------------------------------------------------


def test_without_a_look_up_a_person_is_asked_and_nothing_is_repeated():
    """E03."""
    service.then("silent")
    run = begin(unknown_pays_blind, "A-1")
    assert (run.status, run.code, run.failure_class) == ("blocked", "EFFECT_UNKNOWN", "unknown")
    go(run)
    assert service.calls == ["A-1:blind"]


def test_it_happened_goes_on_with_the_outside_id_and_sends_nothing():
    """E03 (a)."""
    service.then("silent")
    run = begin(unknown_pays_blind, "A-1")
    happened(run, "r9")
    assert output(go(run)) == "r9"
    assert service.calls == ["A-1:blind"]
    assert (record(run).status, record(run).external_resource_id) == ("succeeded", "r9")


def test_it_happened_with_a_result_gives_the_body_that_result():
    service.then("silent")
    run = begin(unknown_pays_blind, "A-1")
    happened(run, "r9", result={"id": "from their console"})
    assert output(go(run)) == "from their console"


def test_it_did_not_happen_is_refused_until_the_first_call_can_no_longer_land():
    """P03: the clock that binds the executor binds a person too."""
    service.then("lost")
    run = begin(unknown_pays_blind, "A-1")
    with pytest.raises(TooEarly) as early:
        did_not_happen(run)
    assert early.value.until == record(run).settle_until
    with pytest.raises(TooEarly):
        runs.give_up(run.id, actor="user:oscar", reason="enough")
    assert (record(run).status, len(service.calls)) == ("unknown", 1)


def test_it_did_not_happen_sends_exactly_once_more_under_the_same_key():
    """E03 (b)."""
    service.then("lost")
    run = begin(unknown_pays_blind, "A-1")
    can_no_longer_land(run)
    did_not_happen(run)
    assert output(go(run)) == "r1"
    assert service.calls == ["A-1:blind", "A-1:blind"]
    assert service.keys() == ["A-1:blind"]


def test_giving_up_waits_for_a_call_that_was_sent_after_it_was_asked_for():
    """Invariant 5: the executor judges it again, whatever was true when somebody clicked."""
    service.then("lost")
    run = begin(unknown_pays_blind, "A-1")
    inbox.put(run.id, "give_up.requested", actor="user:oscar", payload={"reason": "enough"})
    run = go(run)
    assert (run.status, run.waiting_for) == ("waiting", "reconcile")
    assert run.wake_at == record(run).settle_until
    can_no_longer_land(run)
    run = wake(run)
    assert (run.status, run.code, record(run).status) == ("failed", "GIVEN_UP", "unknown")


def test_only_what_is_unknown_can_be_resolved_and_only_once():
    service.then("silent")
    run = begin(unknown_pays_blind, "A-1")
    happened(run)
    with pytest.raises(NotUnknown):
        happened(run, "r8")
    can_no_longer_land(run)
    with pytest.raises(NotUnknown):
        did_not_happen(run)
    with pytest.raises(NotUnknown):
        effects.ask_outside(record(run).operation_id, actor="user:oscar")
    assert output(go(run)) == "r9"


@pytest.mark.parametrize(("resource", "path"), [("", "resource_id"), (" ", "resource_id")])
def test_a_resolution_names_what_exists_outside(resource, path):
    service.then("silent")
    run = begin(unknown_pays_blind, "A-1")
    with pytest.raises(InvalidValue) as refused:
        happened(run, resource)
    assert refused.value.path == path
    assert record(run).status == "unknown"


def test_an_action_that_does_not_exist_or_is_a_strangers_cannot_be_resolved():
    service.then("silent")
    run = begin(unknown_pays_blind, "A-1")
    with pytest.raises(RecordNotFound):
        happened(run, tenant="elsewhere")
    with pytest.raises(RecordNotFound):
        effects.ask_outside(uuid7(), actor="user:oscar")


def test_a_resolution_that_is_rolled_back_changes_nothing():
    """B08."""
    service.then("silent")
    run = begin(unknown_pays_blind, "A-1")
    with transaction.atomic():
        happened(run)
        transaction.set_rollback(True)
    assert (record(run).status, go(run).status) == ("unknown", "blocked")


def test_a_dead_executor_does_not_make_its_own_action_unknown_without_a_higher_epoch():
    """P10: neither sweeper nor time marks anything unknown."""
    run = died_while_calling()
    can_no_longer_land(run)
    execute("UPDATE durable_lease SET expires_at = clock_timestamp() - interval '1 h'")
    assert sweeper.sweep(uuid4())
    assert record(run).status == "running"
    take_over(run)
    assert "external.unknown" in types(run)


# Cancel and give up ------------------------------------------------------------------------------


def test_a_cancel_waits_for_a_call_that_may_land_and_undoes_it_when_it_did():
    """P03, P07: no refund of a charge that then lands, no charge left standing."""
    run = died_while_calling()
    runs.cancel(run.id, actor="user:oscar", reason="customer left")
    run = take_over(run)
    assert (run.status, run.waiting_for) == ("waiting", "reconcile")
    assert service.calls == []
    service.do("A-1:pay", "10")
    run = ask_again_about(run, "pay")
    assert run.status == "cancelled"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]
    assert record(run, operation="pay").status == "compensated"


def ask_again_about(run, operation):
    effects.ask_outside(record(run, operation=operation).operation_id, actor="user:oscar")
    return go(run)


def test_a_cancel_ends_when_the_call_is_known_not_to_have_landed():
    """P03."""
    run = died_while_calling()
    runs.cancel(run.id, actor="user:oscar", reason="customer left")
    run = take_over(run)
    can_no_longer_land(run)
    run = ask_again_about(run, "pay")
    assert run.status == "cancelled"
    assert service.keys() == []
    assert record(run).status == "failed"


def test_giving_up_lists_what_stays_unknown_and_undoes_the_rest():
    @workflow(version="1")
    def ships_then_pays(order):
        ship(order)
        return pay_blind(order)

    run = start(ships_then_pays, "A-1")
    service.then("ok", "silent")
    run = go(run)
    can_no_longer_land(run)
    runs.give_up(run.id, actor="user:oscar", reason="nobody can tell")
    run = go(run)
    assert (run.status, run.code) == ("failed", "GIVEN_UP")
    told = payloads(run, "run.failed")[0]
    assert [left["why"] for left in told["left"]] == ["unknown"]
    assert [undone["name"] for undone in told["undone"]] == ["ship"]
    assert record(run, operation="pay_blind").status == "unknown"
    assert service.keys("undo") == ["A-1:ship:undo"]


def test_an_unknown_undo_is_looked_up_like_any_other_action():
    run = start(asks_after_paying, "A-1")
    go(run)
    runs.cancel(run.id, actor="user:oscar", reason="customer left")
    service.then("silent")
    run = go(run)
    assert run.status == "cancelled"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]
    assert record(run, operation="pay").status == "compensated"
    assert record(run, operation="pay:undo").status == "succeeded"


@workflow(version="1")
def asks_after_paying(order):
    pay(order, "10")
    interrupt("Go on?")


def test_what_a_person_says_while_the_executor_asks_wins():
    """P02: the reconcile that meets a settled record starts over from what is stored."""
    run = died_while_calling()
    take_over(run)
    original = service.find

    def find(key):
        happened(run, "r9")
        return original(key)

    service.find = find  # type: ignore[method-assign]
    try:
        run = ask_again(run)
    finally:
        del service.find
    assert output(fresh(run)) == "r9"
    assert (service.calls, record(run).external_resource_id) == ([], "r9")
    assert IdempotencyRecord.objects.count() == 1


def test_a_question_answered_during_an_unknown_action_is_not_lost():
    @workflow(version="1")
    def asks_first(order):
        return [interrupt("Go on?"), pay(order, "10")["id"]]

    run = begin(asks_first, "A-1")
    answer(run, "yes")
    with crash(at="durable_effect_begin"):
        go(run)
    service.do("A-1:pay", "10")
    assert output(take_over(run)) == ["yes", "r1"]
