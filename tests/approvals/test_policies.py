"""Which actions ask, and that every doubt asks."""

from datetime import timedelta
from decimal import Decimal

import pytest

from approvals import policies
from approvals.errors import InvalidPolicy
from approvals.policies import Policy
from examples.policies import is_large

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def no_policies(monkeypatch):
    monkeypatch.setattr(policies, "_policies", {})


def make_policy(**fields):
    return Policy(
        **{
            "name": "large",
            "effect": "charge",
            "when": lambda parameters: Decimal(parameters["amount"]) > 5000,
            "decide_within": 24 * HOUR,
            "valid_for": HOUR,
            "sentence": "Large charges need somebody else.",
            **fields,
        }
    )


def asked(effect, parameters):
    """The terms of an action that has to ask."""
    terms = policies.asking(effect, parameters)
    assert terms is not None
    return terms


def test_an_action_asks_only_if_a_policy_of_its_effect_applies():
    policies.register(make_policy())
    assert asked("charge", {"amount": "5000.01"}).name == "large"
    assert policies.asking("charge", {"amount": "5000.00"}) is None
    assert policies.asking("ship", {"amount": "9999"}) is None


@pytest.mark.parametrize("parameters", [{}, {"amount": None}, {"amount": "much"}, {"amount": []}])
def test_a_condition_that_raises_asks(parameters):
    policies.register(make_policy())
    assert policies.asking("charge", parameters) is not None


@pytest.mark.parametrize("answer", [True, None, 0, "", "no", [], 1])
def test_only_false_itself_lets_an_action_pass(answer):
    assert make_policy(when=lambda parameters: answer).applies({})
    assert not make_policy(when=lambda parameters: False).applies({})


def test_a_condition_cannot_change_what_is_sent():
    def meddle(parameters):
        parameters["lines"].append("free gift")
        return False

    parameters = {"lines": ["shoe"]}
    assert not make_policy(when=meddle).applies(parameters)
    assert parameters == {"lines": ["shoe"]}


def test_the_strictest_terms_of_all_matching_policies_hold():
    policies.register(make_policy(name="b", no_self_approval=False, valid_for=3 * HOUR))
    policies.register(make_policy(name="a", decide_within=48 * HOUR, version=2))
    terms = asked("charge", {"amount": "9000"})
    assert terms.name == "a, b"
    assert terms.policies == {"a": 2, "b": 1}
    assert terms.decide_within == 24 * HOUR
    assert terms.valid_for == HOUR
    assert terms.no_self_approval


def test_one_policy_that_does_not_match_never_silences_another():
    policies.register(make_policy(name="first", when=lambda parameters: False))
    policies.register(make_policy(name="second", when=lambda parameters: True))
    assert asked("charge", {}).name == "second"


@pytest.mark.parametrize(
    "wrong",
    [
        {"votes": 2},
        {"votes": 0},
        {"name": ""},
        {"effect": ""},
        {"sentence": ""},
        {"decide_within": timedelta()},
        {"valid_for": -HOUR},
        {"version": 0},
        {"when": True},
    ],
)
def test_a_policy_that_cannot_work_is_refused_where_it_is_declared(wrong):
    with pytest.raises(InvalidPolicy):
        make_policy(**wrong)


def test_two_policies_of_one_name_are_refused():
    first = policies.register(make_policy())
    assert policies.register(first) is first
    with pytest.raises(InvalidPolicy):
        policies.register(make_policy())
    assert policies.registered() == (first,)


def test_a_snapshot_reads_back_as_the_same_terms():
    terms = policies.combine([make_policy()])
    assert policies.read(policies.snapshot(terms)) == terms


@pytest.mark.parametrize(
    "damage",
    [
        {"votes": 2},
        {"no_self_approval": "no"},
        {"no_self_approval": None},
        {"valid_for": "1"},
        {"policies": []},
        {"policies": {"a": "1"}},
        {"sentence": None},
    ],
)
def test_a_damaged_snapshot_is_not_read(damage):
    stored = policies.snapshot(policies.combine([make_policy()]))
    with pytest.raises(InvalidPolicy):
        policies.read(stored | damage)
    with pytest.raises(InvalidPolicy):
        policies.read(None)


def test_tightening_counts_at_once_and_loosening_never_helps_an_old_request():
    old = policies.combine([make_policy()])
    newer = policies.combine([make_policy(version=2)])
    added = policies.combine([make_policy(), make_policy(name="also")])
    assert not old.cover(newer)
    assert not old.cover(added)
    assert newer.cover(old)
    assert added.cover(old)


@pytest.mark.parametrize("amount", ["5000", "0", "5_000", "4999.99"])
def test_the_example_lets_small_charges_pass(amount):
    assert not is_large({"amount": amount})


@pytest.mark.parametrize("amount", ["5000.01", "5210.00", "1e4", "Infinity", "-6000"])
def test_the_example_asks_about_large_charges_and_strange_ones(amount):
    assert is_large({"amount": amount})


@pytest.mark.parametrize("amount", ["NaN", "", "five", None])
def test_the_example_asks_about_what_is_no_amount(amount):
    assert make_policy(when=is_large).applies({"amount": amount})
