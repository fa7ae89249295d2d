"""An outside action as it is about to be sent: what is shown, hashed and sent is one text."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from durable import effect, workflow
from durable.errors import InvalidValue
from durable.models import IdempotencyRecord, Run
from durable.proposals import MAX_KEY, Proposal
from tests.scenario import begin, output
from tests.shop import pay, service

EFFECT = pay.definition


def proposal(effect=EFFECT, generation=1, **parameters):
    run = Run(tenant="acme", workflow="w", generation=generation, started_by="user:oscar")
    context: Any = SimpleNamespace(run=run)
    given = {"order": "A-1", "amount": "10", "customer": "acme", **parameters}
    return Proposal(context, effect, "1", given)


def test_the_action_that_is_shown_is_made_from_what_is_hashed():
    action = proposal(amount="5210.00").action()
    assert action.parameters == {"order": "A-1", "amount": "5210.00", "customer": "acme"}
    assert (action.target, action.amount) == ("acme", "5210.00 USD")
    assert action.title == "Charge 5210.00 USD to acme"
    assert (action.effect, action.key, action.requested_by) == ("pay", "A-1:pay", "user:oscar")


def test_values_are_those_of_the_stored_text_and_not_of_the_caller():
    lines = [{"n": 1}]
    made = proposal(order="A-1", amount=("1", 2), customer=lines)
    lines[0]["n"] = 2
    assert made.parameters["amount"] == ["1", 2]
    assert made.parameters["customer"] == [{"n": 1}]
    assert '"customer":[{"n":1}]' in made.request


@pytest.mark.parametrize(
    "changed", [{"amount": "11"}, {"customer": "other"}, {"order": "A-2"}, {"amount": 10}]
)
def test_any_other_parameter_is_another_request(changed):
    assert proposal(**changed).hash != proposal().hash
    assert proposal(**changed).fingerprint != proposal().fingerprint
    assert proposal().hash == proposal().hash


def test_the_same_parameters_of_another_operation_are_another_request():
    assert EFFECT.undoing is not None
    assert proposal(EFFECT.undoing).hash != proposal().hash


def test_the_key_that_is_sent_says_undo_and_generation():
    assert EFFECT.undoing is not None
    assert proposal().sent_key == "A-1:pay"
    assert proposal(generation=2).sent_key == "A-1:pay:g2"
    assert proposal(EFFECT.undoing).sent_key == "A-1:pay:undo"
    assert proposal(EFFECT.undoing, generation=2).sent_key == "A-1:pay:undo:g2"


@pytest.mark.parametrize("order", ["a\x00b", "\ud800", "x" * (MAX_KEY + 1)])
def test_a_key_that_cannot_be_stored_is_refused(order):
    """S01."""
    with pytest.raises(InvalidValue):
        proposal(order=order)


@pytest.mark.parametrize("order", ["A:g2", "A:g1", "A:undo", "A:undo:g31", ":g0"])
def test_a_key_that_would_be_sent_as_that_of_another_action_is_refused(order):
    """Hole 26: "charge:A:g2" is also what generation 2 of "charge:A" sends."""
    with pytest.raises(InvalidValue, match="which the engine adds") as refused:
        proposal(replace(EFFECT, key="charge:{order}"), order=order)
    assert refused.value.path == "pay key"


@pytest.mark.parametrize("key", ["A:g", "A:gx2", "A-g2", "A:undoing", "undo", "g2", "A:g2:"])
def test_a_key_that_only_looks_similar_is_sent(key):
    assert proposal(replace(EFFECT, key="{order}"), order=key).sent_key == key


@pytest.mark.parametrize("place", ["key", "title", "target", "amount"])
def test_a_template_that_cannot_be_filled_is_refused_with_its_place(place):
    """Hole 21: at the gate it would raise outside the body, again in every claim."""
    for template in ("{amount:.2f}", "{amount!z}", "{amount:{width}}"):
        templates: dict[str, Any] = {place: template}
        with pytest.raises(InvalidValue) as refused:
            proposal(replace(EFFECT, **templates))
        assert refused.value.path == f"pay {place}"


def test_a_template_that_makes_unstorable_text_is_refused():
    """Hole 21, S01."""
    with pytest.raises(InvalidValue, match="pay title: contains a NUL"):
        proposal(replace(EFFECT, title="{amount:c}"), amount=0)


@effect(key="{order}:unfilled", title="Charge {amount:.2f}")
def proposals_unfilled(call, order, amount):
    return service.do(call.key, amount)


@pytest.mark.usefixtures("checked", "large_payments_ask")
def test_a_body_sees_that_a_template_does_not_fit_before_there_is_any_intent():
    """Hole 21."""

    @workflow(version="1")
    def proposals_flow(order):
        try:
            proposals_unfilled(order, "10")
        except InvalidValue as error:
            refused = error.path
        return [refused, proposals_unfilled(order, 10)["id"]]

    run = begin(proposals_flow, "A-1")
    assert output(run) == ["proposals_unfilled title", "r1"]
    assert service.keys() == ["A-1:unfilled"]
    assert len(IdempotencyRecord.objects.filter(run=run)) == 1


def test_arguments_that_are_not_json_are_refused_with_their_place():
    with pytest.raises(InvalidValue) as refused:
        proposal(amount={1, 2})
    assert refused.value.path == "pay arguments.amount"
