"""What a person found out about an outside action: said once, by one, and binding."""

from functools import partial

import pytest

from approvals.models import Approval, Permit
from durable import effects, workflow
from durable.errors import InvalidValue, NotUnknown
from tests.approvals.miniature import say
from tests.scenario import (
    at_once,
    begin,
    can_no_longer_land,
    events,
    go,
    output,
    past_the_triggers,
    payloads,
    record,
)
from tests.shop import pay, pay_blind, service

pytestmark = pytest.mark.usefixtures("checked")


@workflow(version="1")
def effects_pays(order):
    return pay_blind(order)["id"]


@pytest.fixture
def unknown(checked):
    """A run blocked by an action that nobody knows about, and cannot land any more."""
    service.then("lost")
    run = begin(effects_pays, "A-1")
    can_no_longer_land(run)
    return run


def happened(run, **options):
    given = {"resource_id": "r9", "actor": "user:oscar", "reason": "seen", **options}
    effects.resolve_happened(record(run).operation_id, **given)


def not_happened(run, reason="looked it up"):
    effects.resolve_not_happened(record(run).operation_id, actor="user:oscar", reason=reason)


def test_of_two_people_who_say_the_opposite_at_once_one_is_believed(unknown):
    results = at_once(partial(happened, unknown), partial(not_happened, unknown))
    assert sorted(type(result).__name__ for result in results) == ["NoneType", "NotUnknown"]
    believed = "succeeded" if results[0] is None else "failed"
    assert record(unknown).status == believed
    assert output(go(unknown)) == ("r9" if believed == "succeeded" else "r1")
    assert len(service.calls) == (1 if believed == "succeeded" else 2)


def test_what_was_said_is_on_the_timeline_with_who_and_why(unknown):
    happened(unknown, reason="their console shows r9")
    go(unknown)
    told = events(unknown, "external.resolved")[0]
    assert told.actor == "user:oscar"
    assert payloads(unknown, "external.resolved")[0] == {
        "operation_id": str(record(unknown).operation_id),
        "outcome": "happened",
        "reason": "their console shows r9",
        "resource": "r9",
        "result": {"id": "r9"},
    }


@pytest.mark.parametrize("reason", ["", " ", "a\x00b", None])
def test_a_resolution_needs_a_reason(unknown, reason):
    for resolve in (partial(happened, unknown), partial(not_happened, unknown)):
        with pytest.raises(InvalidValue) as refused:
            resolve(reason=reason)
        assert refused.value.path == "reason"
    assert record(unknown).status == "unknown"


@pytest.mark.parametrize(
    "wrong", [{"result": float("nan")}, {"result": {1}}, {"resource_id": "a\x00b"}]
)
def test_a_resolution_that_cannot_be_stored_changes_nothing(unknown, wrong):
    """S01, S02."""
    with pytest.raises(InvalidValue):
        happened(unknown, **wrong)
    assert record(unknown).status == "unknown"


@pytest.mark.parametrize("status", ["running", "succeeded", "failed"])
def test_only_an_unknown_action_is_resolved(unknown, status):
    """The executor's own outcome is not for people to change."""
    past_the_triggers("UPDATE durable_idempotencyrecord SET status = %s", status)
    for resolve in (happened, not_happened):
        with pytest.raises(NotUnknown):
            resolve(unknown)
    past_the_triggers("UPDATE durable_idempotencyrecord SET status = 'unknown'")


def test_the_permit_of_what_happened_is_consumed_and_of_what_did_not_released(large_payments_ask):
    """Invariant 7."""

    @workflow(version="1")
    def effects_large(order):
        return pay(order, "6000")["id"]

    for order, resolve, permit in (
        ("A-1", happened, "consumed"),
        ("A-2", not_happened, "released"),
    ):
        run = begin(effects_large, order)
        say(Approval.objects.get(run=run), "approve")
        service.then("lost")
        service.lookup_then("unknown")
        go(run)
        assert Permit.objects.get(approval__run=run).status == "reserved"
        can_no_longer_land(run)
        resolve(run)
        assert Permit.objects.get(approval__run=run).status == permit
    service.clear()
    assert output(go(run)) == "r1"
