"""One JSON form that is stored, shown, hashed and sent; what has no such form is refused."""

import hashlib
import json
import math

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from durable import canonical
from durable.errors import InvalidValue, ValueTooLarge

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-canonical.MAX_SAFE_INTEGER, canonical.MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda number: not canonical.MAX_SAFE_INTEGER < abs(number) < canonical.FIRST_EXPONENT
    )
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_the_text_is_that_of_rfc_8785_for_every_value(value):
    assert canonical.dumps(value) == rfc8785.dumps(value).decode()


@given(JSON)
def test_what_is_stored_reads_back_as_it_was(value):
    text = canonical.dumps(value)
    assert canonical.loads(text) == value
    assert canonical.dumps(canonical.loads(text)) == text


def test_the_examples_of_the_standard_come_out_to_the_byte():
    literals = (
        '{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],'
        '"string":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",'
        '"literals":[null,true,false]}'
    )
    assert canonical.dumps(json.loads(literals)) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\xf6"]
    ordered = list(json.loads(canonical.dumps(dict.fromkeys(keys, 0))))
    assert ordered == ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e22, "1e+22"),
        (1e21, "1e+21"),
        (0.1, "0.1"),
        (-0.0, "0"),
        (1.0, "1"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        ((1, 2), "[1,2]"),
        ("\\u0000", '"\\\\u0000"'),
        ("\x7f\u2028", '"\x7f\u2028"'),
    ],
)
def test_golden_values(value, text):
    """S01: backslash text that only looks like NUL passes unchanged."""
    assert canonical.dumps(value) == text


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"a": [1, "x\x00"]}, "result.a[1]", "NUL"),
        ({"a\x00": 1}, "result key", "NUL"),
        ("\ud800", "result", "lone surrogate"),
        ({"a": math.nan}, "result.a", "NaN"),
        ([math.inf], "result[0]", "NaN and infinity"),
        (-math.inf, "result", "NaN and infinity"),
        ({"n": 2**53}, "result.n", "2^53"),
        ({"n": -(2**53)}, "result.n", "2^53"),
        ({"n": 1e20}, "result.n", "2^53"),
        ({"n": float(2**53)}, "result.n", "2^53"),
        ({"items": [0, 0, {"owner": {1}}]}, "result.items[2].owner", "set is not JSON"),
        ((n for n in [1]), "result", "generator"),
        (object, "result", "type is not JSON"),
        (b"bytes", "result", "bytes"),
        ({1: "x"}, "result", "key 1 is not text"),
    ],
)
def test_what_has_no_json_form_is_refused_with_its_path_and_never_its_value(value, path, reason):
    """S01, S02, S04."""
    with pytest.raises(InvalidValue, match=reason.replace("^", r"\^")) as refused:
        canonical.dumps(value, path="result")
    assert refused.value.path == path


def test_a_list_that_contains_itself_is_refused():
    """S04."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidValue, match="nested deeper than 64"):
        canonical.dumps(endless)


@pytest.mark.parametrize("depth", [65, 200, 1_000, 20_000])
@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_deep_nesting_is_refused_and_no_recursion_error(depth, bracket):
    """S07."""
    text = "[" * depth + "]" * depth if bracket == "[]" else '{"a":' * depth + "1" + "}" * depth
    with pytest.raises(InvalidValue):
        canonical.loads(text)


def test_the_documented_depth_is_accepted():
    """S07."""
    text = "[" * canonical.MAX_DEPTH + "]" * canonical.MAX_DEPTH
    assert canonical.dumps(canonical.loads(text)) == text


def test_size_counts_bytes_and_not_characters():
    """S06."""
    with pytest.raises(ValueTooLarge):
        canonical.dumps("é" * 6, max_bytes=13)
    assert canonical.dumps("é" * 6, max_bytes=14)
    with pytest.raises(ValueTooLarge):
        canonical.dumps("x" * canonical.MAX_BYTES)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"decision":"reject","decision":"approve"}', "body"),
        ('{"params":{"to":"a@x","to":"b@y"}}', "body.params"),
        ('[{"a":1,"\\u0061":2}]', "body[0]"),
    ],
)
def test_a_key_that_appears_twice_is_refused_at_any_depth(text, path):
    """S09."""
    with pytest.raises(InvalidValue, match="appears twice") as refused:
        canonical.loads(text, path="body")
    assert refused.value.path == path


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "1e400", "", "{", "01", "'a'"])
def test_what_is_not_json_is_not_read(text):
    """S02."""
    with pytest.raises(InvalidValue):
        canonical.loads(text)


def test_a_number_with_a_million_digits_is_refused():
    """S06: Python's own limit is a ValueError, not a hang."""
    with pytest.raises(InvalidValue):
        canonical.loads("9" * 1_000_000)


def test_a_digest_is_bound_to_its_domain_and_length():
    expected = hashlib.sha256(b"standfast/1/request/2:{}").hexdigest()
    assert canonical.digest("request", "{}") == expected
    assert canonical.digest("approval", "{}") != expected
    assert len(canonical.short_digest("{}")) == 24


def test_unicode_forms_that_look_alike_are_different_values():
    """A01."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert canonical.digest("x", canonical.dumps(composed)) != canonical.digest(
        "x", canonical.dumps(decomposed)
    )
