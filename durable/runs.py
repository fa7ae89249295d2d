"""Commands about runs. Each joins the caller's transaction; `actor` says who asks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now
from psycopg.types.json import Jsonb

from durable import actors, canonical, conf, inbox, reasons, registry, schemas, sql
from durable.canonical import JSON
from durable.errors import (
    InterruptClosed,
    InterruptNotFound,
    InvalidValue,
    NotBlocked,
    RunEnded,
    RunNotFound,
    StartKeyConflict,
    TooEarly,
)
from durable.models import IdempotencyRecord, Interrupt, Run, uuid7
from durable.statuses import EventType, InterruptStatus, RecordStatus, RunStatus

START = """
SELECT durable_start_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
MAX_KEY = 500
MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The run, and whether this call made it (False: the start key had one already)."""

    run: Run
    created: bool


def start(  # noqa: PLR0913 - all but three have defaults
    workflow: str,
    input: JSON,
    *,
    actor: str,
    key: str | None = None,
    tenant: str | None = None,
    goal: str = "",
    version: str | None = None,
    thread_id: str | None = None,
    run_at: datetime | None = None,
    priority: int = 0,
    labels: dict[str, str] | None = None,
    generation: int = 1,
) -> Started:
    """Start a run, in the caller's transaction: it exists if and only if that commits.

    `key` is unique per tenant and workflow: the same key with the same input returns the run
    that exists. `run_at` (aware) delays the first claim. Raises WorkflowUnknown, InvalidValue,
    StartKeyConflict.
    """
    definition = registry.workflow(workflow, version)
    tenant = tenant or conf.tenant()
    text = canonical.dumps(input, path="input")
    actors.check(actor)
    _check_names(key=key, tenant=tenant, goal=goal, thread_id=thread_id)
    _check_number("generation", generation, lowest=1)
    _check_number("priority", priority, lowest=-MAX_NUMBER)
    if run_at is not None and run_at.tzinfo is None:
        raise InvalidValue("needs a time zone", path="run_at")
    digest = canonical.digest("input", text)
    run_id = uuid7()
    payload = canonical.dumps(
        {
            "goal": goal,
            "input_digest": digest,
            "key": key,
            "version": definition.version,
            "workflow": workflow,
        }
    )
    created = sql.value(
        START,
        run_id,
        tenant,
        workflow,
        definition.version,
        1,
        thread_id,
        goal,
        text,
        digest,
        key,
        generation,
        priority,
        Jsonb(canonical.plain(labels or {}, path="labels")),
        run_at,
        actor,
        payload,
    )
    if not created:
        return Started(run=_existing(tenant, workflow, key, digest), created=False)
    if run_at is None:
        transaction.on_commit(lambda: inbox.announce(run_id), robust=True)
    return Started(run=Run.objects.get(id=run_id), created=True)


def _check_number(name: str, value: int, *, lowest: int) -> None:
    if type(value) is not int or not lowest <= value <= MAX_NUMBER:
        raise InvalidValue(f"must be a whole number from {lowest} to {MAX_NUMBER}", path=name)


def _check_names(**names: str | None) -> None:
    for name, value in names.items():
        if value is None:
            continue
        if not isinstance(value, str):
            raise InvalidValue("must be text", path=name)
        canonical.check_text(value, name)
        if len(value) > MAX_KEY:
            raise InvalidValue(f"is longer than {MAX_KEY} characters", path=name)
        if not value and name != "goal":
            raise InvalidValue("must not be empty", path=name)


def _existing(tenant: str, workflow: str, key: str | None, digest: str) -> Run:
    run = Run.objects.get(tenant=tenant, workflow=workflow, start_key=key)
    if run.input_digest != digest:
        raise StartKeyConflict(
            f"The start key {key!r} of {workflow} was used with another input (run {run.id})."
        )
    return run


def _live(run_id: UUID, tenant: str | None) -> Run:
    runs = Run.objects.filter(id=run_id)
    run = (runs.filter(tenant=tenant) if tenant else runs).first()
    if run is None:
        raise RunNotFound
    if run.is_final:
        raise RunEnded(f"The run has ended: it {run.status}.")
    return run


@transaction.atomic
def cancel(run_id: UUID, *, actor: str, reason: str, tenant: str | None = None) -> None:
    """Cancel a run: what it did is undone, then it ends. No effect starts once this committed.

    Raises RunNotFound, RunEnded, InvalidValue.
    """
    reasons.check(reason)
    _live(run_id, tenant)
    inbox.put(run_id, EventType.CANCEL_REQUESTED, actor=actor, payload={"reason": reason})


@transaction.atomic
def resume(run_id: UUID, *, actor: str, reason: str, tenant: str | None = None) -> None:
    """Let a blocked run try again from where it is.

    Raises RunNotFound, RunEnded, NotBlocked, InvalidValue.
    """
    reasons.check(reason)
    if _live(run_id, tenant).status != RunStatus.BLOCKED:
        raise NotBlocked
    inbox.put(run_id, EventType.RESUME_REQUESTED, actor=actor, payload={"reason": reason})


@transaction.atomic
def give_up(run_id: UUID, *, actor: str, reason: str, tenant: str | None = None) -> None:
    """End a blocked run as failed, after undoing what can be undone.

    What is still unknown stays unknown and is listed. Refused while an unknown call can land.
    Raises RunNotFound, RunEnded, NotBlocked, TooEarly, InvalidValue.
    """
    reasons.check(reason)
    if _live(run_id, tenant).status != RunStatus.BLOCKED:
        raise NotBlocked
    landing = (
        IdempotencyRecord.objects.filter(
            run_id=run_id, status=RecordStatus.UNKNOWN, settle_until__gt=_clock()
        )
        .order_by("-settle_until")
        .first()
    )
    if landing is not None:
        raise TooEarly(until=landing.settle_until)
    inbox.put(run_id, EventType.GIVE_UP_REQUESTED, actor=actor, payload={"reason": reason})


def _clock() -> datetime:
    """The database's clock, moving within a transaction (`now()` stands still there)."""
    at: datetime = sql.value("SELECT clock_timestamp()")
    return at


@transaction.atomic
def answer(interrupt_id: UUID, value: JSON, *, actor: str, tenant: str | None = None) -> None:
    """Answer a question of a run. The first answer stands.

    Raises InterruptNotFound, InterruptClosed, InvalidValue (the question stays open).
    """
    actors.check(actor)
    text = canonical.dumps(value, path="answer")
    questions = Interrupt.objects.filter(id=interrupt_id)
    if tenant:
        questions = questions.filter(run__tenant=tenant)
    question = questions.first()
    if question is None:
        raise InterruptNotFound
    if question.schema is not None:
        schemas.validate(canonical.loads(text), json.loads(question.schema))
    # The check is the WHERE clause: of two answers at once one finds the question closed.
    taken = (
        Interrupt.objects.filter(id=interrupt_id, status=InterruptStatus.OPEN)
        .exclude(expires_at__lte=_clock())
        .update(status=InterruptStatus.ANSWERED, answer=text, answered_by=actor, answered_at=Now())
    )
    if not taken:
        raise InterruptClosed
    inbox.put(
        question.run_id,
        EventType.INTERRUPT_ANSWERED,
        actor=actor,
        task_key=question.task_key,
        payload={"interrupt": str(interrupt_id), "value": canonical.loads(text)},
    )
