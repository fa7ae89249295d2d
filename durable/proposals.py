"""One outside action as the executor is about to send it: shown = hashed = sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from durable import canonical, gate, records
from durable.answers import Answer
from durable.canonical import JSON
from durable.context import Context, fact
from durable.errors import InvalidValue
from durable.gate import Statement
from durable.journal import Fact, written
from durable.models import uuid7
from durable.registry import EffectDefinition
from durable.statuses import EventType, RecordStatus

NODE = "main"


# Characters. Longer than any service takes, shorter than what an index can hold.
MAX_KEY = 500
# What a sent key says after the key: "charge:A:g2" must be generation 2 of "charge:A" only.
SENT_ENDING = re.compile(r":(undo|g[0-9]+)\Z")


def _check_key(key: str, path: str) -> None:
    canonical.check_text(key, path)
    if not key or len(key) > MAX_KEY:
        raise InvalidValue(f"must have 1 to {MAX_KEY} characters", path=path)
    ending = SENT_ENDING.search(key)
    if ending:
        raise InvalidValue(f"must not end in {ending.group()!r}, which the engine adds", path=path)


class Proposal:
    """An effect, its bound parameters and its key, at one place of a run."""

    def __init__(
        self, context: Context, effect: EffectDefinition, path: str, parameters: Mapping[str, Any]
    ) -> None:
        self.context = context
        self.effect = effect
        self.path = path
        self.request = canonical.dumps(dict(parameters), path=f"{effect.name} arguments")
        # From here on only what the text holds.
        self.parameters: dict[str, JSON] = json.loads(self.request)
        self.fingerprint = canonical.short_digest(self.request)
        self.key = self._filled("key", effect.key)
        _check_key(self.key, f"{effect.name} key")
        self.title = self._filled("title", effect.title) or effect.name
        self.target = self._filled("target", effect.target)
        self.amount = self._filled("amount", effect.amount)
        self.hash = canonical.digest("request", f"{effect.operation}\n{self.request}")
        self.operation_id: UUID = uuid7()

    def _filled(self, name: str, template: str) -> str:
        """Fill a template here, where a body can catch that it does not fit: before any intent."""
        path = f"{self.effect.name} {name}"
        try:
            text = self.effect.text(template, self.parameters)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise InvalidValue(f"{template!r} cannot be filled: {error}", path=path) from error
        canonical.check_text(text, path)
        return text

    @property
    def sent_key(self) -> str:
        """The key as the outside service sees it."""
        suffix = ":undo" if self.effect.compensates else ""
        generation = self.context.run.generation
        return self.key + suffix + (f":g{generation}" if generation > 1 else "")

    def action(self) -> gate.Action:
        """What the gate decides about."""
        effect, run = self.effect, self.context.run
        return gate.Action(
            tenant=run.tenant,
            run_id=run.id,
            workflow=run.workflow,
            effect=effect.name,
            operation=effect.operation,
            operation_id=self.operation_id,
            key=self.key,
            generation=run.generation,
            task_key=self.path,
            title=self.title,
            target=self.target,
            amount=self.amount,
            parameters=self.parameters,
            requested_by=run.started_by,
            undo=effect.undo,
        )

    # Events -----------------------------------------------------------------------------------

    def payload(self, **parts: JSON) -> str:
        """The payload of an event about this action."""
        return canonical.dumps(
            {
                "input": self.fingerprint,
                "name": self.effect.name,
                "operation_id": str(self.operation_id),
                **parts,
            }
        )

    def requested(self) -> str:
        effect = self.effect
        return self.payload(
            operation=effect.operation,
            key=self.key,
            hash=self.hash,
            timeout_ms=round(effect.timeout * 1000),
        )

    def answered(self, answer: Answer, resource: str | None, *, reused: bool = False) -> str:
        """The payload of the event that gives the body its answer."""
        marks = {"reused": True} if reused else {}
        return self.payload(resource=resource, **answer.parts(), **marks)

    def fact(self, type: EventType, payload: str) -> Fact:
        return fact(type, self.path, payload)

    def written(self, type: EventType, payload: str) -> Statement:
        return written(self.context.fence, self.fact(type, payload))

    # Statements -------------------------------------------------------------------------------

    def find(self) -> Statement:
        """Read the record that the key has, whoever made it."""
        run = self.context.run
        return Statement(
            sql=records.FIND,
            params=(run.tenant, self.effect.operation, self.key, run.generation),
        )

    def _opened(self) -> tuple[Any, ...]:
        run = self.context.run
        return (
            self.operation_id,
            run.tenant,
            self.effect.operation,
            self.key,
            run.generation,
            self.hash,
            self.request,
            self.path,
            self.context.fence.phase.value,
        )

    def _deadlines(self) -> tuple[Any, ...]:
        effect = self.effect
        return (
            timedelta(seconds=effect.timeout),
            timedelta(seconds=effect.settle),
            effect.deduplicates,
        )

    def opening(self) -> Statement:
        """Lock or insert the record, or say how the key is taken."""
        return Statement(sql=records.OPEN, params=(self.context.run.id, *self._opened()))

    def starting(self, approval_version: int | None) -> Statement:
        """Move the opened record to `running`."""
        fence = self.context.fence
        params = (
            self.context.run.id,
            self.operation_id,
            fence.epoch,
            self.hash,
            self.request,
            *self._deadlines(),
            approval_version,
            fence.phase.value,
            fence.ttl,
            NODE,
            self.path,
            self.requested(),
        )
        return Statement(sql=records.START, params=params)

    def beginning(self) -> tuple[Any, ...]:
        """The parameters of `records.BEGIN` after the fence."""
        return (*self._opened(), *self._deadlines(), self.context.fence.ttl, NODE, self.requested())

    def settling(
        self, status: RecordStatus, answer: Answer, type: EventType, payload: str
    ) -> Statement:
        """Store an outcome under the epoch that started the call."""
        fence = self.context.fence
        params = (
            self.context.run.id,
            self.operation_id,
            fence.epoch,
            *_outcome(status, answer),
            None,
            *self._told(type, payload),
        )
        return Statement(sql=records.SETTLE, params=params)

    def ending(
        self, status: RecordStatus, answer: Answer, type: EventType, payload: str
    ) -> tuple[Any, ...]:
        """The parameters of `records.END` after the fence."""
        return (self.operation_id, *_outcome(status, answer), *self._told(type, payload))

    def _told(self, type: EventType, payload: str) -> tuple[Any, ...]:
        return (self.context.fence.ttl, type.value, NODE, self.path, payload)

    def storing_resource(self, resource_id: str) -> Statement:
        """Keep an outside id while the call is still running."""
        canonical.check_text(resource_id, "resource id")
        fence = self.context.fence
        payload = canonical.dumps({"operation_id": str(self.operation_id), "resource": resource_id})
        params = (
            self.context.run.id,
            self.operation_id,
            fence.epoch,
            resource_id,
            fence.ttl,
            NODE,
            self.path,
            payload,
        )
        return Statement(sql=records.RESOURCE, params=params)

    def reusing(self, record: records.Record, payload: str) -> Statement:
        """Answer from a record that succeeded, if it still is as it was read."""
        params = (
            self.context.run.id,
            record["operation_id"],
            self.hash,
            self.context.fence.ttl,
            NODE,
            self.path,
            payload,
        )
        return Statement(sql=records.REUSE, params=params)

    def reconciling(
        self, outcome: str, answer: Answer, resource: str | None, payload: str
    ) -> Statement:
        """Store what the outside service says about an unknown action."""
        happened = outcome == "happened"
        params = (
            self.context.run.id,
            self.operation_id,
            outcome,
            canonical.dumps(answer.result) if happened else None,
            resource,
            self.context.fence.ttl,
            NODE,
            self.path,
            payload,
            self.answered(answer, resource),
        )
        return Statement(sql=records.RECONCILE, params=params)


def _outcome(status: RecordStatus, answer: Answer) -> tuple[str, str | None, str | None]:
    if answer.error is not None:
        return status.value, None, canonical.dumps(answer.error)
    return status.value, canonical.dumps(answer.result), None
