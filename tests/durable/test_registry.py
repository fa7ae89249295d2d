"""What installed apps declare, checked where it is declared."""

from functools import partial
from typing import Any

import pytest

from durable import registry
from durable.authoring import effect, task, workflow
from durable.errors import WorkflowUnknown
from durable.registry import EffectDefinition, TaskDefinition, WorkflowDefinition
from durable.retry import Retry


def declared(function, **fields):
    given = {"name": "sample", "operation": "sample", "key": "{order}:sample"}
    return EffectDefinition(function=function, **{**given, **fields})


def sample(call, order, amount="1", *, note=""):
    return order, amount, note


def test_arguments_are_bound_by_name_with_their_defaults():
    definition = declared(sample)
    full = {"order": "A", "amount": "1", "note": ""}
    assert definition.bind(("A",), {}) == full
    assert definition.bind((), {"order": "A", "note": "n"}) == {**full, "note": "n"}
    with pytest.raises(TypeError, match="missing"):
        definition.bind((), {})
    with pytest.raises(TypeError, match="unexpected"):
        definition.bind(("A",), {"surprise": 1})


@pytest.mark.parametrize(
    "function", [lambda call, *args: 0, lambda call, **rest: 0, lambda call, order, /: 0]
)
def test_arguments_without_a_name_of_their_own_are_refused(function):
    with pytest.raises(TypeError, match="no name of its own"):
        declared(function).check()


async def waits_for(call, order):
    return order


def yields(call, order):
    yield order


async def yields_later(call, order):
    yield order


class Asynchronous:
    async def __call__(self, call, order):
        return order


DEFERRED = [waits_for, yields, yields_later, partial(waits_for, order="A"), Asynchronous()]


@pytest.mark.parametrize("function", DEFERRED)
def test_a_function_whose_call_does_nothing_yet_is_refused(function):
    """Hole 14: it would be recorded as a success, and nothing would have run."""
    with pytest.raises(TypeError, match="write a plain function"):
        effect(name="registry-deferred", key="{order}")(function)
    with pytest.raises(TypeError, match="write a plain function"):
        task(name="registry-deferred")(function)
    with pytest.raises(TypeError, match="write a plain function"):
        task(name="registry-deferred", compensate=function)(lambda order: order)
    assert registry.effect("registry-deferred") is None


@pytest.mark.parametrize("helper", ["reconcile", "compensate", "reconcile_undo"])
def test_a_look_up_or_undo_whose_call_does_nothing_yet_is_refused_by_its_name(helper):
    """Hole 14."""
    helpers: dict[str, Any] = {helper: waits_for}
    declare = effect(name="registry-deferred", key="{order}", **helpers)
    with pytest.raises(TypeError, match="waits_for is a coroutine"):
        declare(lambda call, order: order)


def test_an_argument_that_the_undo_would_not_receive_is_refused():
    """Hole 18: the undo's `result` is what the action returned, so the key would change."""
    undo: dict[str, Any] = {"compensate": lambda result: result}
    with pytest.raises(TypeError, match="rename the parameter 'result'"):
        effect(name="registry-hidden", key="{result}", **undo)(lambda call, result: result)
    with pytest.raises(TypeError, match="rename the parameter 'call'"):
        effect(name="registry-hidden", key="k", **undo)(lambda it, call: call)
    with pytest.raises(TypeError, match="rename the parameter 'call'"):
        effect(name="registry-hidden", key="k", reconcile=sample)(lambda it, call: call)
    with pytest.raises(TypeError, match="rename the parameter 'result'"):
        task(name="registry-hidden", **undo)(lambda result: result)
    task(name="registry-hidden")(lambda result, call: result)
    task(name="registry-hidden", **undo)(lambda call: call)
    effect(name="registry-hidden", key="{result}")(lambda call, result: result)


def test_a_template_that_names_no_parameter_is_refused():
    with pytest.raises(ValueError, match="'ordre'"):
        declared(sample, key="{ordre}:sample").check_templates()


def test_a_template_cannot_reach_into_a_value():
    definition = declared(sample, key="{order.__class__}")
    with pytest.raises(ValueError, match=r"order\.__class__"):
        definition.check_templates()
    assert declared(sample).text("{order}:{amount}", {"order": "A", "amount": 5}) == "A:5"


def test_an_undo_is_an_effect_of_its_own_with_the_same_key():
    undoing = declared(sample, compensate=lambda call, order: None, title="Do it").undoing
    assert (undoing.name, undoing.operation) == ("sample:undo", "sample:undo")
    assert (undoing.key, undoing.compensates) == ("{order}:sample", "sample")
    assert undoing.title == "Undo: Do it"
    assert declared(sample).undoing is None


def test_an_undo_or_look_up_need_not_take_every_argument():
    parameters = {"order": "A", "amount": "1", "result": 5}
    assert registry.accepted(lambda call, result: 0, parameters) == {"result": 5}
    assert registry.accepted(lambda call, **rest: 0, parameters) == parameters


def test_two_apps_cannot_declare_one_name():
    """Shared idempotency keys would merge two different actions."""

    def elsewhere(order):
        return order

    elsewhere.__module__ = "another.app"
    effect(name="registry-clash", key="{order}")(lambda call, order: order)
    with pytest.raises(ValueError, match=r"another\.app"):
        registry.add_effect(
            EffectDefinition(
                name="registry-clash", function=elsewhere, operation="charge", key="{order}"
            )
        )
    undone = TaskDefinition(
        name="registry-clash", function=elsewhere, retry=Retry(), compensate=elsewhere
    )
    task(name="registry-clash", compensate=elsewhere)(lambda order: order)
    with pytest.raises(ValueError, match=r"another\.app"):
        registry.add_task(undone)
    workflow(name="registry-clash", version="1")(lambda order: order)
    with pytest.raises(ValueError, match="two modules"):
        registry.add_workflow(
            WorkflowDefinition(name="registry-clash", version="1", function=elsewhere)
        )


def test_two_apps_may_both_have_a_task_of_one_name_that_nobody_undoes():
    def elsewhere(order):
        return order

    elsewhere.__module__ = "another.app"
    task(name="registry-shared")(lambda order: order)
    registry.add_task(TaskDefinition(name="registry-shared", function=elsewhere, retry=Retry()))


def test_a_new_run_gets_the_version_declared_last_and_old_ones_stay():
    for version in ("1", "2"):
        workflow(name="registry-versions", version=version)(lambda order: order)
    assert registry.workflow("registry-versions").version == "2"
    assert registry.workflow("registry-versions", "1").key == "registry-versions@1"
    assert {"registry-versions@1", "registry-versions@2"} <= {
        definition.key for definition in registry.workflows()
    }


@pytest.mark.parametrize(("name", "version"), [("nowhere", None), ("registry-versions", "9")])
def test_a_workflow_that_nobody_registers_is_said_by_name(name, version):
    with pytest.raises(WorkflowUnknown, match=name):
        registry.workflow(name, version)


def test_an_effect_is_found_by_its_name_and_its_undo_by_a_suffix():
    effect(name="registry-pay", key="{order}:p", compensate=lambda call, order: 0)(
        lambda call, order: 0
    )
    found, undoing = registry.effect("registry-pay"), registry.effect("registry-pay:undo")
    assert found is not None
    assert undoing is not None
    assert undoing.compensates == found.name
    assert registry.effect("registry-nothing") is None
    assert registry.effect("registry-nothing:undo") is None
