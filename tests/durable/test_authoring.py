"""How workflows are written: decorators, checked where they stand, and the calls of a body."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from durable import (
    Failure,
    Misplaced,
    OutsideRun,
    Retry,
    effect,
    gather,
    interrupt,
    now,
    random,
    record_event,
    run_info,
    sleep,
    task,
    uuid,
    workflow,
)
from tests.scenario import answer, begin, go, output, payloads
from tests.shop import pay

pytestmark = pytest.mark.usefixtures("alone")


@task()
def authoring_add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@workflow(version="1")
def authoring_flow(order):
    """Add."""
    return authoring_add(order)


def test_what_is_declared_keeps_its_name_and_words():
    assert (named(authoring_add), authoring_add.__doc__) == ("authoring_add", "Add two numbers.")
    assert (authoring_flow.name, authoring_flow.version) == ("authoring_flow", "1")
    assert named(pay) == "pay"


def named(declared: Any) -> str:
    return str(declared.__name__)


def test_a_workflow_is_started_and_not_called():
    with pytest.raises(Misplaced, match=r"runs\.start"):
        authoring_flow({})


def test_a_workflow_needs_a_version():
    """A run keeps the version it began with."""
    declare: Any = workflow
    with pytest.raises(TypeError):
        declare(lambda order: order)
    with pytest.raises(TypeError, match="version"):
        declare(name="authoring_versionless")


@pytest.mark.parametrize("word", ["flushed", "sync", "no"])
def test_the_only_word_for_durability_is_flush(word):
    with pytest.raises(ValueError, match="flush"):
        task(durable=word)(lambda a: a)
    with pytest.raises(ValueError, match="flush"):
        workflow(version="1", durable=word)(lambda order: order)


def test_a_task_or_effect_whose_arguments_have_no_names_is_refused_where_it_stands():
    with pytest.raises(TypeError, match="no name of its own"):
        task()(lambda *args: args)
    with pytest.raises(TypeError, match="no name of its own"):
        effect(key="k", name="authoring_bad")(lambda call, **rest: rest)


@pytest.mark.parametrize("place", ["key", "target", "amount", "title"])
def test_a_template_that_names_no_argument_is_refused_where_it_stands(place):
    templates: dict[str, Any] = {"key": "{order}", place: "{nothing}"}
    with pytest.raises(ValueError, match="'nothing'"):
        effect(name="authoring_templates", **templates)(lambda call, order: order)


def test_a_task_may_compensate_another_declared_task():
    @task()
    def authoring_undo(result):
        return result

    @task(compensate=authoring_undo)
    def authoring_do(order):
        return order

    assert authoring_do.definition.compensate is authoring_undo.definition.function


def test_wrong_arguments_are_the_bodys_own_error():
    @workflow(version="1")
    def authoring_wrong(order):
        try:
            return authoring_add(1, 2, 3)  # type: ignore[call-arg]
        except TypeError as error:
            return str(error)

    assert "too many positional arguments" in output(begin(authoring_wrong))


def test_submitted_calls_give_their_results_later():
    @workflow(version="1")
    def authoring_submits(order):
        handles = [authoring_add.submit(n, b=n) for n in range(5)]
        return [handle.result() for handle in handles]

    assert output(begin(authoring_submits)) == [0, 2, 4, 6, 8]


def test_a_submitted_call_that_fails_raises_where_its_result_is_asked_for():
    @task(retry=Retry(attempts=1))
    def authoring_fails(order):
        raise Failure("no")

    @workflow(version="1")
    def authoring_late(order):
        handle = authoring_fails.submit(order)
        try:
            return handle.result()
        except Failure as error:
            return str(error)

    assert output(begin(authoring_late)) == "no"


def test_gather_returns_in_the_order_given_and_of_nothing_nothing():
    @workflow(version="1")
    def authoring_gathers(order):
        return [gather(), gather(lambda: 1, lambda: authoring_add(1), lambda: None)]

    assert output(begin(authoring_gathers)) == [[], [1, 2, None]]


def test_an_effect_may_be_submitted_too():
    @workflow(version="1")
    def authoring_effects(order):
        handles = [pay.submit(f"A-{n}", "10") for n in range(3)]
        return sorted(handle.result()["id"] for handle in handles)

    assert output(begin(authoring_effects)) == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    "call", [now, uuid, random, run_info, lambda: sleep(1), lambda: gather(int)]
)
def test_what_is_recorded_needs_a_run(call):
    with pytest.raises(OutsideRun):
        call()


def test_recorded_values_have_their_types():
    seen: list[object] = []

    @workflow(version="1")
    def authoring_values(order):
        seen.extend([now(), uuid(), random()])

    begin(authoring_values)
    assert [type(value) for value in seen] == [datetime, UUID, float]
    assert seen[0].tzinfo is not None  # type: ignore[attr-defined]
    assert 0 <= seen[2] < 1  # type: ignore[operator]


def test_a_business_fact_is_in_the_log_once_however_often_the_body_is_entered():
    @workflow(version="1")
    def notes(order):
        record_event("reservation.cancelled", {"order": order})
        interrupt("Go on?")

    run = begin(notes, "A-1")
    answer(run, True)
    assert go(run).status == "succeeded"
    assert [said["facts"] for said in payloads(run, "business")] == [{"order": "A-1"}]
