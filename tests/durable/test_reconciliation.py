"""Asking the outside whether an action happened: whatever it says, only a clear word counts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from durable import reconciliation
from durable.reconciliation import Happened, NotFound, Said, StillUnknown, ask
from tests.shop import pay

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def said(reconcile):
    fence = SimpleNamespace(activity="")
    proposal: Any = SimpleNamespace(
        effect=replace(pay.definition, reconcile=reconcile),
        parameters={"order": "A-1", "amount": "10", "customer": "acme"},
        context=SimpleNamespace(fence=fence),
    )
    return ask(proposal, "the call")


def raises(error):
    def reconcile(call):
        raise error

    return reconcile


def test_a_clear_yes_carries_its_result_and_resource():
    found = said(lambda call: Happened(result={"id": "r1"}, resource="r1"))
    assert (found.outcome, found.answer.result, found.resource) == ("happened", {"id": "r1"}, "r1")


@pytest.mark.parametrize("no", [NotFound, NotFound()])
def test_a_clear_no_is_the_class_or_an_instance(no):
    assert said(lambda call: no).outcome == "not_found"


@pytest.mark.parametrize(
    "reconcile",
    [
        lambda call: StillUnknown,
        lambda call: StillUnknown(),
        lambda call: None,
        lambda call: False,
        lambda call: "not_found",
        lambda call: {"id": "r1"},
        lambda call: Happened(result={1, 2}),
        lambda call: Happened(result=1, resource="a\x00b"),
        raises(TimeoutError("no answer")),
        raises(ValueError("odd")),
        None,
    ],
)
def test_anything_else_means_that_we_still_do_not_know(reconcile):
    """Invariant 5: never "it failed"."""
    assert said(reconcile).outcome == "still_unknown"


def test_the_look_up_gets_the_parameters_it_names():
    got = []
    said(lambda call, amount: got.append((call, amount)))
    assert got == [("the call", "10")]


def record(settled_in):
    return {"now": NOW, "settle_until": NOW + timedelta(seconds=settled_in)}


def test_not_found_is_asked_again_when_the_first_call_can_no_longer_land():
    """P03."""
    no = Said("not_found")
    assert reconciliation._next_question(record(30), no, 0) == NOW + timedelta(seconds=30)
    assert reconciliation._next_question(record(0), no, 0) is None
    assert reconciliation._next_question(record(-1), no, 0) is None
    assert reconciliation._next_question(record(30), Said("happened"), 0) is None


@pytest.mark.parametrize(("asked", "pause"), [(0, 2), (1, 4), (5, 64), (9, 600), (10**6, 600)])
def test_still_unknown_is_asked_with_growing_pauses_up_to_a_limit(asked, pause):
    """E20: no overflow, however often it was asked."""
    due = reconciliation._next_question(record(30), Said("still_unknown"), asked)
    assert due == NOW + timedelta(seconds=pause)
