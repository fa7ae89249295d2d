"""Exceptions stored as JSON and rebuilt, so that the first run and a replay see the same."""

import json

import pytest

from durable import canonical, failures
from durable.errors import ApprovalRejected, InvalidValue, StoredError


class PaymentDeclined(Exception):
    def __init__(self, decline_code, limit, *, source=None):
        super().__init__(f"declined: {decline_code}")
        self.decline_code = decline_code
        self.limit = limit
        self._source = source


def rebuilt(error):
    return failures.load(json.loads(canonical.dumps(failures.dump(error))))


def test_an_exception_comes_back_with_class_message_arguments_and_fields():
    """P13."""
    error = rebuilt(PaymentDeclined("insufficient_funds", 0.1))
    assert type(error) is PaymentDeclined
    assert (str(error), error.decline_code, error.limit) == (
        "declined: insufficient_funds",
        "insufficient_funds",
        0.1,
    )


def test_the_engines_own_errors_keep_their_fields():
    error = rebuilt(ApprovalRejected("no", by="user:alice", reason="wrong customer"))
    assert isinstance(error, ApprovalRejected)
    assert (error.by, error.reason) == ("user:alice", "wrong customer")
    refused = rebuilt(InvalidValue("is not JSON", path="result.a"))
    assert isinstance(refused, InvalidValue)
    assert refused.path == "result.a"


def test_an_error_whose_class_is_gone_is_still_an_error():
    stored = {**failures.dump(ValueError("x")), "kind": "no.such.module:Gone"}
    error = failures.load(stored)
    assert isinstance(error, StoredError)
    assert (str(error), error.kind) == ("x", "no.such.module:Gone")


@pytest.mark.parametrize(
    "kind", ["os:system", "builtins:SystemExit", "builtins:eval", "subprocess:Popen", "", ":", "a:"]
)
def test_only_an_exception_is_ever_made_from_what_is_stored(kind):
    stored = {**failures.dump(ValueError("x")), "kind": kind}
    assert type(failures.load(stored)) is StoredError


def test_an_error_with_odd_text_and_odd_fields_can_be_stored():
    """S01: the outside's words are kept readable, whatever they hold."""
    stored = failures.dump(ValueError("zero \x00 half \ud800"))
    assert stored["message"] == "zero \\u0000 half \\ud800"
    assert canonical.dumps(stored)
    odd = failures.dump(ValueError({1}, b"raw", float("nan")))
    assert odd["args"] == ["{1}", "b'raw'", "nan"]
    assert canonical.dumps(odd)


def test_a_message_has_a_longest_length():
    """S06."""
    assert len(failures.dump(ValueError("x" * 10**6))["message"]) == failures.MAX_MESSAGE


def test_private_fields_stay_behind():
    """D07: a request or connection object that an error drags along is not stored."""
    assert "_source" not in failures.dump(PaymentDeclined("x", 1, source=object()))["fields"]
