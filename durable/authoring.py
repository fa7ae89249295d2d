"""How workflows are written: decorators, and the recorded calls of a body."""

from __future__ import annotations

import random as chance
import uuid as identity
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast

from durable import canonical, idempotency, registry, steps, waits
from durable.canonical import JSON
from durable.context import Scope, current
from durable.control import Suspend
from durable.errors import Misplaced
from durable.registry import EffectDefinition, TaskDefinition, Undo, WorkflowDefinition
from durable.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")


class Handle(Generic[R]):
    """A submitted call. `result()` returns what it returned, or raises what it raised."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self) -> R:
        """Wait for the branch; nothing is slept away while it waits for a person or a time."""
        scope = current()
        scope.context.wait_for(scope, self._future)
        try:
            value = self._future.result()
        except Suspend as control:
            scope.closed = control  # whoever waits for a parked branch is parked too
            raise
        scope.context.check(scope)
        return cast(R, value)


def _submit(work: Callable[[Scope], Any]) -> Handle[Any]:
    """Start a branch: a scope of its own, numbered in its parent, so that order cannot matter."""
    parent = current()
    branch = Scope(parent.context, f"{parent.next_path()}.")
    return Handle(parent.context.branch(branch, lambda: work(branch)))


class Task(Generic[P, R]):
    """A function whose result is recorded. Call it from a workflow's body."""

    def __init__(self, definition: TaskDefinition) -> None:
        self.definition = definition
        update_wrapper(self, definition.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        scope = current()
        parameters = self.definition.bind(args, kwargs)
        return cast(R, steps.perform(scope, self.definition, scope.next_path(), parameters))

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start the call in a thread of its own and return at once."""
        # As they are now: the body may change what it passed before the thread begins.
        bound = canonical.plain(self.definition.bind(args, kwargs), path="arguments")

        def work(branch: Scope) -> Any:
            return steps.perform(current(), self.definition, branch.next_path(), bound)

        return _submit(work)


class Effect(Generic[P, R]):
    """An outside action that happens once per key. Call it from a workflow's body."""

    def __init__(self, definition: EffectDefinition) -> None:
        self.definition = definition
        update_wrapper(self, definition.function)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        scope = current()
        parameters = self.definition.bind(args, kwargs)
        return cast(R, idempotency.perform(scope, self.definition, scope.next_path(), parameters))

    def submit(self, *args: Any, **kwargs: Any) -> Handle[R]:
        """Start the call in a thread of its own and return at once."""
        bound = canonical.plain(self.definition.bind(args, kwargs), path="arguments")

        def work(branch: Scope) -> Any:
            return idempotency.perform(current(), self.definition, branch.next_path(), bound)

        return _submit(work)


class Workflow(Generic[P, R]):
    """A registered workflow. Start it with `runs.start(workflow.name, input, ...)`."""

    def __init__(self, definition: WorkflowDefinition) -> None:
        self.definition = definition
        self.name = definition.name
        self.version = definition.version
        update_wrapper(self, definition.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        raise Misplaced(f"Start {self.name!r} with durable.runs.start; calling it records nothing.")


def workflow(
    *,
    version: str,
    name: str | None = None,
    durable: str = "",
) -> Callable[[Callable[P, R]], Workflow[P, R]]:
    """Register the body of a run under a name (the function's) and a version.

    `durable="flush"` makes every task of it commit synchronously.
    """

    def register(body: Callable[P, R]) -> Workflow[P, R]:
        definition = WorkflowDefinition(
            name=name or body.__name__,
            version=version,
            function=body,
            flush=_is_flush(durable),
        )
        registry.add_workflow(definition)
        return Workflow(definition)

    return register


def task(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    atomic: bool = False,
    durable: str = "",
    compensate: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """A recorded step.

    atomic: its ORM writes and its record commit together: exactly once.
    durable="flush": its record is on disk before the body goes on, however cheap it was.
    compensate(result, **arguments) undoes it when the run fails or is cancelled.
    """

    def register(function: Callable[P, R]) -> Task[P, R]:
        definition = TaskDefinition(
            name=name or function.__name__,
            function=function,
            retry=retry or Retry(),
            atomic=atomic,
            flush=_is_flush(durable),
            compensate=_function_of(compensate),
        )
        definition.check()
        registry.add_task(definition)
        return Task(definition)

    return register


def effect(  # noqa: PLR0913 - each is one declared fact about the action
    *,
    key: str,
    name: str | None = None,
    operation: str | None = None,
    target: str = "",
    amount: str = "",
    title: str = "",
    timeout: float = 30.0,
    settle: float = 30.0,
    reconcile: Callable[..., Any] | None = None,
    deduplicates: bool = False,
    key_valid_for: float | None = None,
    undo: Undo = "manual",
    compensate: Callable[..., Any] | None = None,
    reconcile_undo: Callable[..., Any] | None = None,
    failures: tuple[type[Exception], ...] = (),
    retry: Retry | None = None,
) -> Callable[[Callable[..., R]], Effect[Any, R]]:
    """An outside action; the function's first parameter is the `Call` with key and fence.

    key, target, amount, title: templates over the arguments, such as "{order_id}:charge".
    timeout: seconds until the call can be taken for lost; settle: seconds more in which it may
    still land. reconcile(call, **arguments) returns Happened(result, resource), NotFound or
    StillUnknown. deduplicates: the service itself does a key once. failures: exceptions by which
    the service says that it did not happen; any other exception means "unknown".
    """

    def register(function: Callable[..., R]) -> Effect[Any, R]:
        effect_name = name or function.__name__
        definition = EffectDefinition(
            name=effect_name,
            function=function,
            operation=operation or effect_name,
            key=key,
            target=target,
            amount=amount,
            title=title,
            timeout=timeout,
            settle=settle,
            reconcile=reconcile,
            deduplicates=deduplicates,
            key_valid_for=key_valid_for,
            undo=undo,
            compensate=compensate,
            reconcile_undo=reconcile_undo,
            failures=failures,
            retry=retry or Retry(attempts=5),
        )
        definition.check()
        definition.check_templates()
        registry.add_effect(definition)
        return Effect(definition)

    return register


def _is_flush(durable: str) -> bool:
    if durable not in ("", "flush"):
        raise ValueError(f'durable={durable!r}: the only word here is "flush"')
    return durable == "flush"


def _function_of(compensate: Callable[..., Any] | None) -> Callable[..., Any] | None:
    return compensate.definition.function if isinstance(compensate, Task) else compensate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a body may know about its own run; fixed when the run was started."""

    id: identity.UUID
    tenant: str
    workflow: str
    version: str
    goal: str
    execution_date: datetime  # branch on this, never on the clock
    started_by: str
    generation: int


def run_info() -> RunInfo:
    """The run whose body is calling."""
    run = current().context.run
    return RunInfo(**{name: getattr(run, name) for name in RunInfo.__dataclass_fields__})


# Recorded calls without a function of the user's ------------------------------------------------


def now() -> datetime:
    """The time, recorded: a replay sees what the first execution saw."""
    scope = current()
    text = steps.record(scope, "now", lambda: scope.context.now().isoformat())
    return datetime.fromisoformat(text)


def uuid() -> identity.UUID:
    """A fresh random UUID, recorded."""
    return identity.UUID(steps.record(current(), "uuid", lambda: str(identity.uuid4())))


def random() -> float:
    """A number in [0, 1), recorded."""
    return float(steps.record(current(), "random", chance.random))


def record_event(name: str, facts: JSON) -> None:
    """Add a fact of the business to the run's log, such as "reservation.cancelled".

    A log is never changed: what turned out wrong is corrected by another fact. Raises InvalidValue.
    """
    steps.note(current(), name, facts)


def interrupt(
    question: str, *, schema: JSON = None, timeout: timedelta | float | None = None
) -> JSON:
    """Ask a person and wait, holding nothing; return the answer.

    schema: JSON Schema (2020-12) that an answer must fit before the question takes it.
    timeout: seconds or timedelta. Raises InterruptExpired after it, InvalidValue for a bad schema.
    """
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    return waits.interrupt(current(), question, schema, limit)


def sleep(duration: timedelta | float) -> None:
    """Wait (seconds or timedelta) by the database's clock, holding nothing."""
    waits.sleep(
        current(), duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
    )


def _in_scope(work: Callable[[], Any], scope: Scope) -> Any:
    return work()


def gather(*branches: Callable[[], Any]) -> list[Any]:
    """Run the branches side by side and return their results in the order given.

    Raises what the first of them (in the order given) raised, after all have come to rest.
    """
    handles = [_submit(partial(_in_scope, work)) for work in branches]
    scope = current()
    for handle in handles:
        scope.context.wait_for(scope, handle._future)
    return [handle.result() for handle in handles]
