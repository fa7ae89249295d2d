"""Waiting without a worker: questions to people, and time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NoReturn

from durable import canonical, failures, schemas
from durable.answers import Answer
from durable.canonical import JSON
from durable.context import Scope, fact
from durable.control import Suspend, Wait
from durable.errors import InterruptExpired, InvalidValue
from durable.gate import Statement
from durable.history import StoredEvent
from durable.journal import RowChanged, written
from durable.models import uuid7
from durable.statuses import EventType, WaitingFor

OPEN_INTERRUPT = """
INSERT INTO durable_interrupt
    (id, run_id, task_key, question, schema, status, answered_by, expires_at)
VALUES (%s, %s, %s, %s, %s, 'open', '', %s)
"""
# Longer is a mistake in the unit, and soon beyond what a date can hold.
LONGEST = timedelta(days=3650)
EXPIRE_INTERRUPT = "SELECT durable_interrupt_expire_v1(%s, %s)"


def interrupt(scope: Scope, question: str, schema: JSON, timeout: timedelta | None) -> JSON:
    """Ask a person and return the answer; raises InterruptExpired when none came in time."""
    context, path = scope.context, scope.next_path()
    canonical.check_text(question, "question")
    if timeout is not None and not timedelta(0) < timeout <= LONGEST:
        raise InvalidValue(f"must be more than 0 and at most {LONGEST.days} days", path="timeout")
    if schema is not None:
        schemas.check(schema)
    asked = canonical.dumps({"question": question, "schema": schema}, path="interrupt")
    fingerprint = canonical.short_digest(asked)
    events = context.replay(path, "interrupt", fingerprint)
    for event in events:
        if event.type == EventType.INTERRUPT_ANSWERED:
            return event.payload["value"]
        if event.type == EventType.INTERRUPT_EXPIRED:
            raise failures.load(event.payload["error"])
    with context.faultless():
        if not events:
            _open(scope, path, question, schema, timeout, fingerprint)
        answer = _look_again(scope, path, events[0])
    return answer.value()


def _look_again(scope: Scope, path: str, asked: StoredEvent) -> Answer:
    """The question is open: wait on, or close it when its time is over."""
    expires = asked.payload["expires_at"]
    due = datetime.fromisoformat(expires) if expires else None
    if due is not None and due <= scope.context.now():
        return _expire(scope, path)
    scope.context.suspend(scope, Suspend(Wait(waiting_for=WaitingFor.ANSWER, due=due)))


def _open(
    scope: Scope,
    path: str,
    question: str,
    schema: JSON,
    timeout: timedelta | None,
    fingerprint: str,
) -> NoReturn:
    context = scope.context
    interrupt_id = uuid7()
    due = context.now() + timeout if timeout is not None else None
    payload = canonical.dumps(
        {
            "expires_at": due.isoformat() if due else None,
            "input": fingerprint,
            "interrupt": str(interrupt_id),
            "name": "interrupt",
            "question": question,
            "schema": schema,
        }
    )
    stored_schema = canonical.dumps(schema) if schema is not None else None
    context.write(
        Statement(
            sql=OPEN_INTERRUPT,
            params=(interrupt_id, context.run.id, path, question, stored_schema, due),
        ),
        written(context.fence, fact(EventType.INTERRUPT_WAITING, path, payload)),
    )
    context.suspend(scope, Suspend(Wait(waiting_for=WaitingFor.ANSWER, due=due)))


def _expire(scope: Scope, path: str) -> Answer:
    """Close the question; when somebody answered first, their answer is about to be moved."""
    context = scope.context
    answer = Answer(error=failures.dump(InterruptExpired()))
    payload = canonical.dumps({"error": answer.error})
    try:
        context.write(
            Statement(sql=EXPIRE_INTERRUPT, params=(context.run.id, path)),
            written(context.fence, fact(EventType.INTERRUPT_EXPIRED, path, payload)),
        )
    except RowChanged:
        context.suspend(scope, Suspend(Wait(waiting_for=WaitingFor.ANSWER)))
    return answer


def sleep(scope: Scope, duration: timedelta) -> None:
    """Wait `duration` by the database's clock; nothing is held meanwhile."""
    context, path = scope.context, scope.next_path()
    if not timedelta(0) <= duration <= LONGEST:
        raise InvalidValue(f"must be 0 to {LONGEST.days} days", path="sleep")
    fingerprint = f"{duration.total_seconds():.6f}"
    events = context.replay(path, "sleep", fingerprint)
    if any(event.type == EventType.TIMER_FIRED for event in events):
        return
    with context.faultless():
        if events:
            due = datetime.fromisoformat(events[0].payload["due"])
        else:
            due = context.now() + duration
            started = {"due": due.isoformat(), "input": fingerprint, "name": "sleep"}
            payload = canonical.dumps(started)
            context.append(fact(EventType.TIMER_STARTED, path, payload), sync=True)
        if due > context.now():
            context.suspend(scope, Suspend(Wait(waiting_for=WaitingFor.TIMER, due=due)))
        context.append(fact(EventType.TIMER_FIRED, path, "{}"), sync=False)
