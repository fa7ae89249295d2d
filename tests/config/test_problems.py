"""Every error is a problem with a stable code, and says nothing that it should not."""

import inspect

import pytest
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import Http404

from approvals import errors as approvals
from config import problems
from durable import errors as durable
from tests.clients import anonymous, problem_of, session_of
from tests.people import make_person

pytestmark = pytest.mark.django_db

# What no command raises: misuse of the authoring API, what bodies and executors see.
INSIDE = {
    *("DurableError", "OutsideRun", "Misplaced", "Retryable", "Failure", "ApprovalRejected"),
    *("ApprovalExpired", "InterruptExpired", "KeyReused", "KeyCompensated", "StoredError"),
    *("LeaseLost", "CancelRequestedError", "NotApproved", "ApprovalError", "InvalidPolicy"),
}


def test_every_error_of_a_command_has_its_status():
    for module, base in ((durable, durable.DurableError), (approvals, approvals.ApprovalError)):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, base) and name not in INSIDE:
                assert kind in problems.STATUSES, name


def test_a_fault_of_ours_is_logged_and_not_told(caplog):
    answer = problems.handler(RuntimeError("password=secret"), {})
    assert (answer.status_code, answer.data["code"]) == (500, "BROKEN")
    assert "secret" not in str(answer.data)
    assert "secret" in caplog.text


def test_an_engine_error_that_nobody_expected_is_a_fault_of_ours(caplog):
    assert problems.handler(durable.LeaseLost("x"), {}).status_code == 500


def test_a_database_that_is_away_is_said(caplog):
    answer = problems.handler(OperationalError("connection refused"), {})
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Http404("the row 17"), 404, "NOT_FOUND"),
        (PermissionDenied("because"), 403, "PERMISSION_DENIED"),
        (durable.InvalidValue("is odd", path="input.a"), 400, "INVALID_VALUE"),
        (durable.ValueTooLarge("is large", path="input"), 413, "TOO_LARGE"),
    ],
)
def test_an_error_becomes_a_problem(error, status, code):
    answer = problems.handler(error, {})
    assert (answer.status_code, answer.data["code"]) == (status, code)
    assert answer.content_type == "application/problem+json"


def test_a_clients_own_words_come_back_only_in_part():
    answer = problems.handler(durable.InvalidValue("is odd", path="input." + "x" * 10_000), {})
    assert len(answer.data["errors"][0]["path"]) < 250
    assert len(answer.data["detail"]) < 1100


@pytest.mark.parametrize("address", ["nothing/", "runs", "runs/7/", "runs/%00/", "approvals/x/y"])
def test_an_unknown_address_is_a_problem_and_no_redirect(address):
    problem_of(anonymous().get(address), 404, "NOT_FOUND")
    problem_of(anonymous().post(address, {"a": 1}), 404, "NOT_FOUND")


def test_more_parameters_than_anybody_reads_are_refused():
    caller = session_of(make_person("vera", "viewer"))
    answer = caller.client.get("/api/v1/runs/?" + "a&" * 1500)
    problem_of(answer, 400, "INVALID_REQUEST")


def test_only_json_is_answered():
    caller = session_of(make_person("vera", "viewer"))
    caller.headers["Accept"] = "text/html"
    problem_of(caller.get("runs/"), 406, "NOT_ACCEPTABLE")
    caller.headers["Accept"] = "text/html, */*;q=0.1"
    assert caller.get("runs/")["Content-Type"] == "application/json"
