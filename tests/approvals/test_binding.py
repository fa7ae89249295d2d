"""An approval is bound to every byte of what will be sent (cases A01, P15)."""

import hashlib
import json
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from approvals import binding
from approvals.binding import Binding
from durable import canonical
from durable.errors import InvalidValue

CHARGE = Binding(
    tenant="default",
    run=UUID("01932f2a-0000-7000-8000-000000000001"),
    operation_id=UUID("01932f2a-0000-7000-8000-000000000002"),
    operation="charge",
    key="A-1001:charge",
    action="charge",
    target="acme-gmbh",
    amount="5210.00 USD",
    parameters='{"amount":"5210.00","currency":"USD","order_id":"A-1001"}',
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3)
    ),
    max_leaves=8,
).filter(lambda value: storable(value))


def storable(value):
    try:
        canonical.dumps(value)
    except InvalidValue:
        return False
    return True


def test_digests_are_those_of_every_earlier_release():
    """Golden vectors: a changed frame would void, or worse revive, every stored approval."""
    accented = replace(
        CHARGE, target="caf\u00e9", parameters='{"note":"\u20ac \\u001b \U0001f600"}'
    )
    assert CHARGE.digest == "159f4e634d648f2a2283207ea3c9bf00fd5074a720367ba7bdcaeab6cf918465"
    assert accented.digest == "3002c2321648900dca205f11b5e38c0294acc2448d8e0c745405de85733dd694"


def test_the_frame_is_what_the_readme_says_so_that_anyone_can_check_a_digest():
    frame = {name: str(getattr(CHARGE, name)) for name in sorted(CHARGE.__slots__)}
    text = json.dumps(frame, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    framed = f"standfast/1/approval/v1/{len(text.encode())}:{text}".encode()
    assert hashlib.sha256(framed).hexdigest() == CHARGE.digest


@pytest.mark.parametrize("name", [field.name for field in fields(Binding)])
def test_another_value_in_any_field_is_another_digest(name):
    """A01: amount, target, action name, parameters, tenant, ..., one at a time."""
    value = getattr(CHARGE, name)
    other: Any = UUID(int=value.int + 1) if isinstance(value, UUID) else value + "x"
    assert replace(CHARGE, **{name: other}).digest != CHARGE.digest


def test_another_unicode_form_of_the_same_letter_is_another_digest():
    """A01: what looks equal need not be the same account."""
    composed = replace(CHARGE, target="caf\u00e9")
    decomposed = replace(CHARGE, target="cafe\u0301")
    assert composed.digest != decomposed.digest
    assert binding.changes(composed, decomposed) == ["target"]


def test_text_cannot_move_from_one_field_to_the_next():
    assert (
        replace(CHARGE, operation="a", key="bc").digest
        != replace(CHARGE, operation="ab", key="c").digest
    )


def test_missing_null_and_empty_parameters_are_three_different_things():
    digests = {replace(CHARGE, parameters=text).digest for text in ("{}", "null", '{"a":null}')}
    assert len(digests) == 3


def test_an_action_and_its_stored_request_bind_the_same(engine):
    approval = engine.ask()
    assert binding.of_approval(approval) == binding.of_action(engine.action)
    assert binding.of_approval(approval).digest == approval.digest


def test_the_largest_and_deepest_storable_parameters_can_be_bound():
    deep: Any = {}
    for _ in range(canonical.MAX_DEPTH - 1):
        deep = {"x": deep}
    text = canonical.dumps({"quotes": '"' * (canonical.MAX_BYTES // 2 - 100)})
    assert replace(CHARGE, parameters=canonical.dumps(deep)).digest
    assert replace(CHARGE, parameters=text).digest


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": 1}, {"a": "1"}, ["a"]),
        ({"a": None}, {}, ["a"]),
        ({}, {"b": None}, ["b"]),
        ({"lines": [{"sku": "X", "n": 1}]}, {"lines": [{"sku": "X", "n": 2}]}, ["lines[0].n"]),
        ({"lines": [1, 2]}, {"lines": [1]}, ["lines[1]"]),
        ({"a": [1]}, {"a": {"0": 1}}, ["a"]),
        ("x", "y", ["value"]),
    ],
)
def test_a_difference_names_its_paths(old, new, paths):
    assert binding.difference(old, new) == paths


def test_a_difference_in_thousands_of_places_stays_small():
    old, new = ({"lines": [n] * 5000} for n in (1, 2))
    assert len(binding.difference(old, new)) == binding.MOST_CHANGES


@given(JSON_VALUES, JSON_VALUES)
def test_values_differ_somewhere_exactly_if_their_canonical_text_differs(old, new):
    same = canonical.dumps(old) == canonical.dumps(new)
    assert (binding.difference(old, new) == []) is same
    assert binding.difference(old, old) == []


def test_changes_name_fields_and_parameters():
    other = replace(CHARGE, target="evil", parameters='{"amount":"1","order_id":"A-1001"}')
    assert binding.changes(CHARGE, other) == [
        "target",
        "parameters.amount",
        "parameters.currency",
    ]
