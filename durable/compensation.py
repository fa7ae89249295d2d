"""Undoing what a run did, newest first, when it fails or is cancelled (a saga).

Each undo is an action of its own: its own record, approval if a policy asks, retries and unknown
state. What cannot be undone is listed for a person.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from uuid import UUID

from durable import idempotency, records, registry, steps
from durable.canonical import JSON
from durable.context import Context, Scope
from durable.control import Block
from durable.errors import BlockCode, InvalidValue
from durable.gate import Statement
from durable.history import StoredEvent
from durable.proposals import Proposal
from durable.registry import EffectDefinition, TaskDefinition, accepted
from durable.statuses import EventType, RecordStatus


@dataclass
class Report:
    """What was undone, and what is left for a person, each named by call and action."""

    undone: list[JSON] = field(default_factory=list)
    left: list[JSON] = field(default_factory=list)


def run(context: Context, scope: Scope, *, give_up: bool) -> Report:
    """Settle what is unknown, then undo every recorded success. Parks or blocks like a body.

    `give_up` leaves what is unknown as it is, listed.
    """
    report = Report()
    found = _records(context)
    records_of_undo = {r["task_key"]: r["status"] for r in found.values() if r["undo"]}
    for record in found.values():
        if record["status"] == RecordStatus.UNKNOWN and not record["undo"]:
            if give_up:
                report.left.append(_named(record["task_key"], record["operation"], "unknown"))
            else:
                _settle(context, scope, record)
    for event in _successes(context):
        undoing = records_of_undo.get(f"undo:{event.task_key}")
        if give_up and undoing == RecordStatus.UNKNOWN:
            report.left.append(_named(event.task_key, _name_of(context, event), "undo unknown"))
        elif undoing == RecordStatus.UNKNOWN and not _undo_is_declared(context, event):
            _block_undeclared(context, f"{_name_of(context, event)}:undo", f"undo:{event.task_key}")
        else:
            _undo(context, scope, event, report)
    return report


def _records(context: Context) -> dict[UUID, dict[str, Any]]:
    rows = context.read(Statement(sql=records.OF_RUN, params=(context.run.id,)))[0]
    return {
        row["operation_id"]: {**row, "undo": row["task_key"].startswith("undo:")} for row in rows
    }


def _settle(context: Context, scope: Scope, record: dict[str, Any]) -> None:
    """An action that was unknown at the cancel holds the run until it is known."""
    path = record["task_key"]
    effect = next(
        (
            registry.effect(event.payload["name"])
            for event in context.history.of(path)
            if "name" in event.payload
        ),
        None,
    )
    if effect is None:
        _block_undeclared(context, record["operation"], path)
    try:
        proposal = Proposal(context, effect, path, records.parameters(record))
    except InvalidValue as error:  # other code wrote the record than is declared now
        context.stop(Block(BlockCode.EFFECT_UNKNOWN, f"Call {path} cannot be asked about: {error}"))
    idempotency.Attempt(scope, proposal).resolve(record["operation_id"])


def _block_undeclared(context: Context, operation: str, path: str) -> NoReturn:
    """Ending here would leave a charge behind of which nobody knows whether it happened."""
    context.stop(
        Block(
            BlockCode.EFFECT_UNKNOWN,
            f"Whether {operation!r} (call {path}) happened is unknown, and no installed app"
            " declares the effect any more. Declare it again, or say what happened.",
        )
    )


def _successes(context: Context) -> list[StoredEvent]:
    """The calls that happened for this run, newest first, each once."""
    found: dict[str, StoredEvent] = {}
    for event in context.history.in_order:
        if _can_be_undone(event):
            found[event.task_key] = event
    return sorted(found.values(), key=lambda event: event.seq, reverse=True)


def _can_be_undone(event: StoredEvent) -> bool:
    if event.task_key.startswith("undo:"):
        return False
    if event.type == EventType.EXTERNAL_COMPLETED:
        return not event.payload.get("reused")
    if event.type == EventType.EXTERNAL_RESOLVED:
        return bool(event.payload["outcome"] == "happened")
    return event.type == EventType.TASK_COMPLETED and "args" in event.payload


def _undo(context: Context, scope: Scope, event: StoredEvent, report: Report) -> None:
    name = _name_of(context, event)
    if event.type == EventType.TASK_COMPLETED:
        definition = registry.task(name)
        if definition is None:
            report.left.append(
                _named(event.task_key, name, "no installed app declares it any more")
            )
        else:
            _attempt(report, event, name, lambda: _undo_task(scope, definition, event))
        return
    effect = registry.effect(name)
    if effect is None or effect.undoing is None:
        report.left.append(_named(event.task_key, name, effect.undo if effect else "manual"))
        return
    undoing = effect.undoing
    _attempt(report, event, name, lambda: _undo_effect(context, scope, undoing, event))


def _undo_is_declared(context: Context, event: StoredEvent) -> bool:
    effect = registry.effect(_name_of(context, event))
    return effect is not None and effect.undoing is not None


def _attempt(report: Report, event: StoredEvent, name: str, undo: Callable[[], object]) -> None:
    """Run one undo; one that fails for good is left for a person and does not stop the others."""
    try:
        undo()
    except Exception as error:
        report.left.append(_named(event.task_key, name, str(error)))
    else:
        report.undone.append(_named(event.task_key, name, ""))


def _undo_task(scope: Scope, definition: TaskDefinition, event: StoredEvent) -> None:
    assert definition.compensate is not None  # noqa: S101
    undoing = TaskDefinition(
        name=f"{definition.name}:undo",
        function=definition.compensate,
        retry=replace(definition.retry, on=(Exception,)),  # whatever goes wrong with an undo
        atomic=definition.atomic,
    )
    parameters = {**event.payload["args"], "result": event.payload["result"]}
    steps.perform(
        scope, undoing, f"undo:{event.task_key}", accepted(definition.compensate, parameters)
    )


def _undo_effect(
    context: Context, scope: Scope, undoing: EffectDefinition, event: StoredEvent
) -> None:
    operation_id = UUID(event.payload["operation_id"])
    original = _records(context)[operation_id]
    if original["status"] == RecordStatus.COMPENSATED:
        return
    parameters = {
        **records.parameters(original),
        "result": event.payload.get("result"),
    }
    path = f"undo:{event.task_key}"
    idempotency.perform(scope, undoing, path, parameters, undoes=operation_id)
    if _records(context)[operation_id]["status"] == RecordStatus.COMPENSATING:
        # A person said that the undo happened: the original follows.
        context.write(
            records.moving(operation_id, [RecordStatus.COMPENSATING], RecordStatus.COMPENSATED)
        )


def _name_of(context: Context, event: StoredEvent) -> str:
    """The effect's or task's name; a person's resolution does not carry it."""
    for recorded in (event, *context.history.of(event.task_key)):
        if "name" in recorded.payload:
            return str(recorded.payload["name"])
    return ""


def _named(path: str, name: str, why: str) -> JSON:
    return {"call": path, "name": name, "why": why}
