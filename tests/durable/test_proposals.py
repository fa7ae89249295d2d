"""An outside action as it is about to be sent: what is shown, hashed and sent is one text."""

from types import SimpleNamespace
from typing import Any

import pytest

from durable.errors import InvalidValue
from durable.models import Run
from durable.proposals import MAX_KEY, Proposal
from tests.shop import pay

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


def test_arguments_that_are_not_json_are_refused_with_their_place():
    with pytest.raises(InvalidValue) as refused:
        proposal(amount={1, 2})
    assert refused.value.path == "pay arguments.amount"
