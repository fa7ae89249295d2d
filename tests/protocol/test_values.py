"""What cannot be stored is refused with its place, and no work is done twice because of it."""

import json
from datetime import datetime

import pytest

from durable import Failure, Retry, canonical, interrupt, registry, runs, task, workflow
from durable.errors import InvalidValue, StartKeyConflict, WorkflowUnknown
from durable.models import IdempotencyRecord, Run
from tests.crashes import crash
from tests.scenario import (
    answer,
    begin,
    fresh,
    go,
    output,
    payloads,
    record,
    start,
    take_over,
    types,
)
from tests.shop import mail, pay, service

pytestmark = pytest.mark.usefixtures("checked")


def endless():
    value: list[object] = []
    value.append(value)
    return value


NOT_JSON = {
    "NUL": ({"note": "a\x00b"}, "result.note"),
    "NUL in a key": ({"a\x00b": 1}, "result key"),
    "half a character": (["\ud800"], "result[0]"),
    "NaN": ({"items": [1, {"price": float("nan")}]}, "result.items[1].price"),
    "infinity": (float("inf"), "result"),
    "a large integer": (2**53, "result"),
    "a set": ({"items": [0, 0, {"owner": {1}}]}, "result.items[2].owner"),
    "a generator": ((n for n in [1]), "result"),
    "an open file": ({"file": open(__file__)}, "result.file"),  # noqa: SIM115
    "a class": ([Run], "result[0]"),
    "a model": ({"run": Run()}, "result.run"),
    "itself": (endless(), "result" + "[0]" * 64),
    "depth": (json.loads("[" * 500 + "]" * 500), "result" + "[0]" * 64),
    "size": ("x" * 2_000_000, "result"),
}


@pytest.fixture(params=NOT_JSON)
def not_json(request):
    value, path = NOT_JSON[request.param]
    return value, path


def test_a_task_whose_result_cannot_be_stored_fails_once_with_the_place(not_json):
    """S01, S02, S04, S06, S07: the step, the path and the type, never the value."""
    value, path = not_json
    calls = []

    @task(retry=Retry(attempts=5))
    def returns_odd(order):
        calls.append(order)
        return value

    @workflow(version="1")
    def with_an_odd_task(order):
        return returns_odd(order)

    run = begin(with_an_odd_task, "A-1")
    assert run.status == "failed"
    assert run.reason.startswith(f"{path}: ")
    assert calls == ["A-1"]
    error = payloads(run, "task.failed")[0]["error"]
    assert error["kind"].startswith("durable.errors:")
    assert error["fields"]["path"] == path


def test_an_effect_whose_answer_cannot_be_stored_has_happened_and_is_not_redone(not_json):
    """S01, S02, S04: the body is told; the run is not stuck."""
    value, path = not_json
    service_do = service.do

    def do(key, what):
        service_do(key, what)
        return value

    @workflow(version="1")
    def with_an_odd_effect(order):
        try:
            return mail(order)
        except InvalidValue as error:
            return ["stored nothing", error.path]

    service.do = do  # type: ignore[method-assign]
    try:
        run = start(with_an_odd_effect, "A-1")
        with crash(at="durable_effect_end"):
            go(run)
        run = take_over(run)
    finally:
        del service.do
    # What is stored inside an event leaves room for the event around it.
    path = path.replace("[0]" * canonical.MAX_DEPTH, "[0]" * (canonical.MAX_DEPTH - 8))
    assert output(run) == ["stored nothing", path.replace("result", "mail result", 1)]
    assert record(run).status == "succeeded"
    assert service.calls == ["A-1:mail"]


def test_a_body_whose_output_cannot_be_stored_fails_and_undoes_nothing_it_need_not():
    @workflow(version="1")
    def returns_a_set(order):
        return {1, 2}

    run = begin(returns_a_set)
    assert (run.status, run.reason) == ("failed", "output: set is not JSON")


def test_what_a_failed_output_did_before_is_undone():
    """A run that cannot say what it did has failed like any other."""

    @workflow(version="1")
    def pays_and_returns_a_set(order):
        pay(order, "10")
        return {1, 2}

    run = begin(pays_and_returns_a_set, "A-1")
    assert run.status == "failed"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]


@workflow(version="1")
def values_plain(order):
    return order


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": "x\x00"}, "input.a"),
        ({"a\x00": 1}, "input key"),
        ([float("nan")], "input[0]"),
        ([[float("-inf")]], "input[0][0]"),
        ({"n": 10**30}, "input.n"),
        ("x" * 20_000_000, "input"),
        ({"s": {1}}, "input.s"),
    ],
)
def test_an_input_that_cannot_be_stored_is_refused_before_any_row(value, path):
    """S01, S02, S06."""
    with pytest.raises(InvalidValue) as refused:
        start(values_plain, value)
    assert refused.value.path == path
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"key": "a\x00b"}, "key"),
        ({"key": ""}, "key"),
        ({"key": "x" * 501}, "key"),
        ({"key": 5}, "key"),
        ({"tenant": "\ud800"}, "tenant"),
        ({"goal": "a\x00b"}, "goal"),
        ({"thread_id": "a\x00b"}, "thread_id"),
        ({"actor": "a\x00b"}, "actor"),
        ({"actor": ""}, "actor"),
        ({"generation": 0}, "generation"),
        ({"labels": {"a": float("nan")}}, "labels.a"),
    ],
)
def test_every_other_part_of_a_start_is_checked_too(options, path):
    """S01."""
    with pytest.raises(InvalidValue) as refused:
        start(values_plain, {}, **options)
    assert refused.value.path == path
    assert not Run.objects.exists()


def test_a_start_without_a_time_zone_is_refused():
    """S10."""
    naive = datetime(2027, 1, 1)  # noqa: DTZ001
    with pytest.raises(InvalidValue, match="time zone"):
        start(values_plain, {}, run_at=naive)
    assert not Run.objects.exists()


def test_text_that_only_looks_like_nul_passes_unchanged():
    """S01."""
    assert output(begin(values_plain, {"a": "\\u0000"})) == {"a": "\\u0000"}


def test_arguments_that_cannot_be_stored_stop_a_call_before_it_is_made():
    @workflow(version="1")
    def pays_nan(order):
        try:
            return pay(order, float("nan"))
        except InvalidValue as error:
            return error.path

    assert output(begin(pays_nan, "A-1")) == "pay arguments.amount"
    assert service.calls == []
    assert not IdempotencyRecord.objects.exists()


def test_a_question_that_cannot_be_stored_is_not_asked():
    @workflow(version="1")
    def asks_nul(order):
        return interrupt("a\x00b")

    assert begin(asks_nul).status == "failed"


def test_an_error_with_odd_text_is_stored_readably():
    """S01."""

    @workflow(version="1")
    def fails_oddly(order):
        raise Failure("zero \x00 half \ud800")

    run = begin(fails_oddly)
    assert (run.status, run.reason) == ("failed", "zero \\u0000 half \\ud800")


def test_a_run_with_a_large_input_can_be_cancelled_like_any_other():
    """S06."""

    @workflow(version="1")
    def large_input(order):
        interrupt("Go on?")

    run = begin(large_input, "x" * 1_000_000)
    runs.cancel(run.id, actor="user:oscar", reason="too large")
    assert go(run).status == "cancelled"


# Start keys ---------------------------------------------------------------------------------------


def test_the_same_key_with_the_same_input_is_the_same_run_whatever_the_order_of_its_names():
    """D06."""
    first = start(values_plain, {"a": 1, "b": 2}, key="k1")
    again = runs.start("values_plain", {"b": 2, "a": 1}, actor="user:oscar", key="k1")
    assert (again.run.id, again.created) == (first.id, False)
    assert types(first) == ["run.created"]


def test_the_same_key_with_another_input_is_refused_and_another_tenant_is_another_key():
    """D06."""
    first = start(values_plain, {"a": 1}, key="k1")
    with pytest.raises(StartKeyConflict, match=str(first.id)):
        start(values_plain, {"a": 2}, key="k1")
    assert start(values_plain, {"a": 2}, key="k1", tenant="elsewhere").id != first.id


def test_a_workflow_that_nobody_has_is_not_started():
    with pytest.raises(WorkflowUnknown, match="'nonsense'"):
        start("nonsense", {})
    with pytest.raises(WorkflowUnknown, match="'99'"):
        start(values_plain, {}, version="99")
    assert not Run.objects.exists()


def test_a_run_whose_code_is_gone_is_left_alone_until_somebody_has_it():
    """P16: old workers neither claim nor block the new version's runs."""
    run = start(values_plain, {"a": 1})
    definition = registry._workflows.pop(("values_plain", "1"))
    assert go(run).status == "pending"
    assert types(run) == ["run.created"]
    registry.add_workflow(definition)
    assert output(go(run)) == {"a": 1}


def test_an_answer_is_given_exactly_as_it_was_sent():
    @workflow(version="1")
    def values_asks(order):
        return interrupt("What?", schema={"type": "object"})

    run = begin(values_asks)
    answer(run, {"n": 1e22, "s": "\u2028", "z": -0.0})
    assert output(go(run)) == {"n": 1e22, "s": "\u2028", "z": 0}
    assert fresh(run).error is None
