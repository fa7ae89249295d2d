"""The workflows, tasks and effects that the installed apps declare, as values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from string import Formatter
from typing import Any, Literal

from durable.canonical import JSON
from durable.errors import WorkflowUnknown
from durable.retry import Retry

Undo = Literal["reversible", "remedy", "manual"]


class Declaration:
    """What tasks and effects share: a function and how its arguments become named parameters."""

    function: Callable[..., Any]
    compensate: Callable[..., Any] | None
    skipped = 0  # leading parameters that the engine supplies

    @cached_property
    def signature(self) -> inspect.Signature:
        signature = inspect.signature(self.function)
        parameters = list(signature.parameters.values())[self.skipped :]
        return signature.replace(parameters=parameters)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.signature.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, defaults filled in. Raises TypeError."""
        if not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    @property
    def helpers(self) -> tuple[Callable[..., Any] | None, ...]:
        """What else of the declaration is called: look-ups and undos."""
        return (self.compensate,)

    @property
    def supplied(self) -> frozenset[str]:
        """Names by which the helpers receive something else than an argument of the call."""
        return frozenset({"result"} if self.compensate else ())

    def check(self) -> None:
        """Refuse what could not be called, or whose arguments could not be recorded by name.

        Raises TypeError.
        """
        for function in (self.function, *self.helpers):
            if function is not None:
                _refuse_deferred(function)
        allowed = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        for parameter in self.signature.parameters.values():
            if parameter.kind not in allowed:
                raise TypeError(
                    f"{self.function.__qualname__}: parameter {parameter} has no name of its own;"
                    " recorded calls take named parameters only"
                )
            if parameter.name in self.supplied:
                raise TypeError(
                    f"{self.function.__qualname__}: rename the parameter {parameter.name!r};"
                    " its look-up or undo receives something else under that name"
                )

    @property
    def module(self) -> str:
        return self.function.__module__


@dataclass(frozen=True, kw_only=True)
class TaskDefinition(Declaration):
    """A recorded step: it runs again only until its result is stored."""

    name: str
    function: Callable[..., Any]
    retry: Retry
    atomic: bool = False
    flush: bool = False
    compensate: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True)
class EffectDefinition(Declaration):
    """An outside action: guarded by an idempotency record, and by an approval if a policy asks."""

    name: str
    function: Callable[..., Any]
    operation: str
    key: str
    target: str = ""
    amount: str = ""
    title: str = ""
    timeout: float = 30.0  # seconds until the call deadline
    settle: float = 30.0  # seconds after it in which a late call may still land
    reconcile: Callable[..., Any] | None = None
    deduplicates: bool = False
    key_valid_for: float | None = None  # seconds the service remembers a key; None: for ever
    undo: Undo = "manual"
    compensate: Callable[..., Any] | None = None
    reconcile_undo: Callable[..., Any] | None = None
    failures: tuple[type[Exception], ...] = ()
    retry: Retry = field(default_factory=Retry)
    compensates: str = ""  # the effect that this one undoes
    skipped = 1  # the call

    @property
    def helpers(self) -> tuple[Callable[..., Any] | None, ...]:
        return (self.reconcile, self.compensate, self.reconcile_undo)

    @property
    def supplied(self) -> frozenset[str]:
        calls = frozenset({"call"} if self.reconcile or self.compensate else ())
        return super().supplied | calls

    @cached_property
    def undoing(self) -> EffectDefinition | None:
        """The effect that undoes this one; same key and generation, its own record."""
        if self.compensate is None:
            return None
        return EffectDefinition(
            name=f"{self.name}:undo",
            function=self.compensate,
            operation=f"{self.operation}:undo",
            key=self.key,
            target=self.target,
            amount=self.amount,
            title=f"Undo: {self.title}" if self.title else "",
            timeout=self.timeout,
            settle=self.settle,
            reconcile=self.reconcile_undo,
            deduplicates=self.deduplicates,
            key_valid_for=self.key_valid_for,
            failures=self.failures,
            retry=self.retry,
            compensates=self.name,
        )

    def check_templates(self) -> None:
        """Refuse a template that names no parameter. Raises ValueError."""
        known = set(self.signature.parameters)
        for template in (self.key, self.target, self.amount, self.title):
            for _, name, _, _ in Formatter().parse(template):
                if name is not None and name not in known:
                    raise ValueError(
                        f"{self.name}: the template {template!r} names {name!r},"
                        f" which is not one of {sorted(known)}"
                    )

    def text(self, template: str, parameters: Mapping[str, JSON]) -> str:
        """Fill a template such as "{order_id}:charge" from the bound parameters."""
        return _PlainFormatter().vformat(template, (), parameters)


def _refuse_deferred(function: Callable[..., Any]) -> None:
    """Calling one of these only makes an object: it would be a success, and nothing had run."""
    called = (function, getattr(type(function), "__call__", None))  # noqa: B004 - to look at it
    deferred = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    if any(is_deferred(what) for what in called for is_deferred in deferred):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"{name} is a coroutine or generator function: calling it does nothing yet;"
            " write a plain function"
        )


def accepted(function: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that `function` names: a reconcile or undo need not take all of them."""
    known = _named_parameters(function)
    if known is None:
        return dict(parameters)
    return {name: value for name, value in parameters.items() if name in known}


@lru_cache(maxsize=1024)
def _named_parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names that `function` takes; None when it takes any."""
    known = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    return None if takes_any else frozenset(known)


class _PlainFormatter(Formatter):
    """Names only: a template may not reach into attributes or items of a value."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        return self.get_value(field_name, args, kwargs), field_name


@dataclass(frozen=True, kw_only=True)
class WorkflowDefinition:
    """The body of a run, under one version."""

    name: str
    version: str
    function: Callable[..., Any]
    flush: bool = False  # every task of it commits synchronously

    @property
    def key(self) -> str:
        """What a claim compares: a worker takes only the runs whose code it has."""
        return f"{self.name}@{self.version}"


_workflows: dict[tuple[str, str], WorkflowDefinition] = {}
_latest: dict[str, str] = {}
_tasks: dict[str, TaskDefinition] = {}
_effects: dict[str, EffectDefinition] = {}


def add_workflow(definition: WorkflowDefinition) -> None:
    """Register one version. The one declared last is what new runs get. ValueError on a clash."""
    place = (definition.name, definition.version)
    known = _workflows.get(place)
    if known is not None and known.function.__module__ != definition.function.__module__:
        raise ValueError(f"workflow {definition.key} is declared in two modules")
    _workflows[place] = definition
    _latest[definition.name] = definition.version


def add_task(definition: TaskDefinition) -> None:
    """Remember a task that can be undone: undoing finds it by its name. ValueError on a clash."""
    if definition.compensate is None:
        return  # only called, never looked up: two apps may both have a `validate`
    _refuse_clash(_tasks.get(definition.name), definition)
    _tasks[definition.name] = definition


def add_effect(definition: EffectDefinition) -> None:
    _refuse_clash(_effects.get(definition.name), definition)
    _effects[definition.name] = definition


def _refuse_clash(
    known: TaskDefinition | EffectDefinition | None, new: TaskDefinition | EffectDefinition
) -> None:
    # Two apps with one name would share idempotency keys and undo each other's work.
    if known is not None and known.module != new.module:
        raise ValueError(f"{new.name} is declared in {known.module} and in {new.module}")


def workflow(name: str, version: str | None = None) -> WorkflowDefinition:
    """The named version, or the newest. Raises WorkflowUnknown."""
    found = _workflows.get((name, version or _latest.get(name, "")))
    if found is None:
        raise WorkflowUnknown(
            f"No installed app registers the workflow {name!r}"
            + (f" version {version!r}." if version else ".")
        )
    return found


def workflows() -> list[WorkflowDefinition]:
    """All registered versions."""
    return list(_workflows.values())


def task(name: str) -> TaskDefinition | None:
    return _tasks.get(name)


def effect(name: str) -> EffectDefinition | None:
    """The named effect; "<name>:undo" is the one that undoes it."""
    base, colon, _ = name.partition(":undo")
    found = _effects.get(base)
    return found.undoing if found is not None and colon else found
