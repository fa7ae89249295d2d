"""Exceptions stored as JSON and rebuilt, so that the first run and a replay see the same."""

import json

import pytest
from django.core.exceptions import ValidationError

from durable import Failure, Retry, Retryable, canonical, failures, task, workflow
from durable.errors import ApprovalRejected, InvalidValue, StoredError
from tests.scenario import begin


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


class Wordy(Exception):
    def __init__(self, code):
        super().__init__()
        self._code = code

    def __str__(self):
        return f"bad {self._code}"


class Mute(Exception):
    def __str__(self):
        raise AttributeError("no words")

    def __repr__(self):
        raise AttributeError("no form")


def test_an_error_that_cannot_say_again_what_it_said_comes_back_as_a_stored_error():
    """Hole 12: the run would be claimed, raise again where it is stored, and never end."""
    for error, words in (
        (Wordy(4), "bad 4"),
        (ValidationError({"amount": ["too large"]}), "{'amount': ['too large']}"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "two (2 sub-exceptions)"),
    ):
        again = rebuilt(error)
        assert isinstance(again, StoredError)
        assert (str(again), again.kind) == (words, failures.dump(error)["kind"])


def test_an_error_without_words_or_form_is_named_by_its_class():
    """Hole 12."""
    again = rebuilt(Mute(Mute("inner")))
    assert isinstance(again, StoredError)
    assert str(again) == "Mute: <tuple>"
    assert failures.dump(ValueError(Mute()))["args"] == ["<Mute>"]


def test_a_stored_error_stored_again_is_the_same():
    """Hole 12: the body may let it out, and then the run's own error is stored from it."""
    once = rebuilt(Wordy(4))
    assert failures.dump(rebuilt(once)) == failures.dump(once)
    assert vars(rebuilt(once)) == vars(once)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        FileNotFoundError(2, "No such file or directory", "order.pdf"),
        ValueError({1}, b"raw"),
        ValueError("x" * 5000),
        ValueError("zero \x00 half \ud800"),
        KeyError("order"),
        Failure(),
        Retryable("busy", retry_after=3),
    ],
)
def test_a_common_error_keeps_the_class_that_a_body_catches(error):
    again = rebuilt(error)
    assert type(again) is type(error)
    assert failures.clean(str(again)) == failures.clean(str(error))


def test_a_field_too_deep_for_an_event_is_kept_as_text():
    """Hole 12: the event around it would be refused for its depth, and the outcome with it."""
    deep: list[object] = []
    for _ in range(60):
        deep = [deep]
    assert canonical.dumps({"answers": [{"error": failures.dump(ValueError(deep))}]})


@task(retry=Retry(attempts=1))
def failures_validates(order):
    raise ValidationError({"amount": ["too large"]})


@pytest.mark.usefixtures("checked")
def test_a_run_whose_task_raises_what_cannot_be_rebuilt_fails_with_its_words():
    """Hole 12."""

    @workflow(version="1")
    def failures_flow(order):
        failures_validates(order)

    run = begin(failures_flow)
    assert (run.status, run.reason) == ("failed", "{'amount': ['too large']}")
