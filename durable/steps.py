"""Recorded tasks: a task runs until its result is stored, and never again after that."""

from __future__ import annotations

import json
import logging
import random
import time
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, NoReturn

from django.db import OperationalError, connections, transaction

from durable import canonical, failures, retry
from durable.answers import Answer
from durable.canonical import JSON
from durable.context import Context, Scope, fact, inside
from durable.control import Abandon, ControlFlow, Suspend, Wait
from durable.errors import InvalidValue, LeaseLost, Misplaced
from durable.history import StoredEvent
from durable.journal import written
from durable.registry import TaskDefinition
from durable.statuses import EventType, WaitingFor

logger = logging.getLogger(__name__)

# What the next try would meet again, whatever its Retry says.
HOPELESS = (InvalidValue, Misplaced)
# Seconds. Work that took longer is flushed at once: it costs more to repeat than to store.
EXPENSIVE = 0.05
# Seconds. A shorter wait is slept, a longer one is stored.
MOMENT = 0.2


def perform(scope: Scope, task: TaskDefinition, path: str, parameters: dict[str, Any]) -> JSON:
    """Return the recorded result of the call at `path`, or make it. Raises what the task raised."""
    context = scope.context
    request = canonical.dumps(parameters, path=f"{task.name} arguments")
    fingerprint = canonical.short_digest(request)
    events = context.replay(path, task.name, fingerprint)
    if events:
        last = events[-1]
        if last.type == EventType.TASK_COMPLETED:
            return last.payload["result"]
        if last.type == EventType.TASK_FAILED:
            raise failures.load(last.payload["error"])
    with context.faultless():
        attempts = _Attempts(scope, task, path, request, fingerprint)
        answer = attempts.make(events)
    return answer.value()


class _Attempts:
    """The tries of one task call."""

    def __init__(
        self,
        scope: Scope,
        task: TaskDefinition,
        path: str,
        request: str,
        fingerprint: str,
    ) -> None:
        self.scope = scope
        self.context: Context = scope.context
        self.task = task
        self.path = path
        # As stored, and its own: a task that changes its argument changes nobody else's.
        self.parameters: dict[str, Any] = json.loads(request)
        self.request = request
        self.head = f'"input":"{fingerprint}","name":{canonical.dumps(task.name)}'
        self.fingerprint = fingerprint

    def make(self, events: list[StoredEvent]) -> Answer:
        """Try until it succeeds, fails for good, or has to wait longer than a moment."""
        failed = [event for event in events if event.type == EventType.TASK_RETRYING]
        attempt = len(failed) + 1
        # Waits between claims count too: the budget runs from the first failure.
        spent = (self.context.now() - failed[0].at).total_seconds() if failed else 0.0
        if events and events[-1].type == EventType.TASK_RETRYING:
            self._wait_until(datetime.fromisoformat(events[-1].payload["due"]))
        started = time.monotonic()
        while True:
            try:
                return Answer(self._try_once())
            except (ControlFlow, KeyboardInterrupt, SystemExit):
                raise
            except (Exception, CancelledError) as error:
                elapsed = spent + time.monotonic() - started
                final = self._after(error, attempt, elapsed)
            if final is not None:
                return final
            attempt += 1

    def _try_once(self) -> JSON:
        if self.task.atomic:
            return self._try_atomic()
        began = time.monotonic()
        with inside(self.task.name, self.context.fence):
            value = self.task.function(**self.parameters)
        expensive = time.monotonic() - began > EXPENSIVE
        result = canonical.dumps(value, path="result")
        sync = expensive or self.task.flush or self.context.workflow.flush
        self.context.append(
            fact(EventType.TASK_COMPLETED, self.path, self._completed(result)), sync=sync
        )
        return json.loads(result)

    def _completed(self, result: str) -> str:
        """The payload, in canonical key order; arguments only where an undo will need them."""
        arguments = f'"args":{self.request},' if self.task.compensate else ""
        return f'{{{arguments}{self.head},"result":{result}}}'

    def _try_atomic(self) -> JSON:
        """Run the body and store its record in one transaction on Django's connection."""
        context = self.context
        committed: list[bool] = []
        with ExitStack() as held:
            self._refuse_other_databases(held)
            try:
                with transaction.atomic(durable=True):
                    # First of all hooks: a later one that raises does not undo the commit.
                    transaction.on_commit(lambda: committed.append(True))
                    with inside(self.task.name, context.fence):
                        value = self.task.function(**self.parameters)
                    result = canonical.dumps(value, path="result")
                    completed = fact(EventType.TASK_COMPLETED, self.path, self._completed(result))
                    # Before the lock of this process: a deferred constraint may wait for a
                    # sibling's transaction, and that sibling for the lock.
                    self._check_constraints()
                    # Until the COMMIT is answered nobody else may write to this log.
                    held.enter_context(context.journal.lock)
                    sent = time.monotonic()
                    context.journal.join(context.fence, [written(context.fence, completed)])
            except LeaseLost:
                context.stop(Abandon())
            except Exception as error:
                if not committed:
                    self._give_up_if_ambiguous(error)
                    raise
                logger.exception("an on_commit hook of %s failed", self.task.name)
            context.journal.joined(context.fence, written=1, sent=sent)
        return json.loads(result)

    def _check_constraints(self) -> None:
        patience = int(self.context.fence.ttl.total_seconds() * 1000 / 3)
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{patience}ms"])
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _give_up_if_ambiguous(self, error: Exception) -> None:
        """A connection lost at COMMIT may have committed: look at the log instead of guessing."""
        if isinstance(error, OperationalError) and not connections["default"].is_usable():
            connections["default"].close()
            self.context.fence.lose(stolen=False)
            self.context.stop(Abandon())

    def _refuse_other_databases(self, held: ExitStack) -> None:
        for alias in connections:
            if alias != "default":
                held.enter_context(connections[alias].execute_wrapper(_refuse))

    def _after(
        self, error: Exception | CancelledError, attempt: int, elapsed: float
    ) -> Answer | None:
        """Decide what follows a failed try: the final error, a stored wait, or (None) another."""
        decision = None
        if isinstance(error, Exception) and not isinstance(error, HOPELESS):
            decision = retry.decide(
                self.task.retry, error, attempt=attempt, elapsed=elapsed, random=random.random
            )
        stored = failures.dump(error)
        if decision is None:
            failed = {"error": stored, "input": self.fingerprint, "name": self.task.name}
            self._append(EventType.TASK_FAILED, failed)
            return Answer(error=stored)
        due = self.context.now() + timedelta(seconds=decision.delay)
        retrying = {
            "attempt": attempt,
            "due": due.isoformat(),
            "error": stored,
            "input": self.fingerprint,
            "name": self.task.name,
        }
        self._append(EventType.TASK_RETRYING, retrying)
        if decision.delay > MOMENT:
            self._suspend(due)
        time.sleep(decision.delay)
        self.context.check(self.scope)
        return None

    def _append(self, type: EventType, payload: JSON) -> None:
        self.context.append(fact(type, self.path, canonical.dumps(payload)), sync=True)

    def _wait_until(self, due: datetime) -> None:
        if due > self.context.now():
            self._suspend(due)

    def _suspend(self, due: datetime) -> NoReturn:
        self.context.suspend(self.scope, Suspend(Wait(waiting_for=WaitingFor.RETRY, due=due)))


def _refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    raise InvalidValue("an atomic task may write only to the default database", path="database")


def record(scope: Scope, name: str, produce: Callable[[], JSON]) -> JSON:
    """Record a value that another execution would produce differently: time, chance, identity."""
    path = scope.next_path()
    events = scope.context.replay(path, name, "")
    if events:
        return events[-1].payload["result"]
    with scope.context.faultless():
        payload = canonical.dumps({"input": "", "name": name, "result": produce()})
        scope.context.append(fact(EventType.TASK_COMPLETED, path, payload), sync=False)
    return json.loads(payload)["result"]


def note(scope: Scope, name: str, facts: JSON) -> None:
    """Append a business fact, once per call path. Raises InvalidValue."""
    path = scope.next_path()
    text = canonical.dumps(facts, path=f"{name} facts")
    canonical.check_text(name, "event name")
    fingerprint = canonical.short_digest(text)
    if scope.context.replay(path, name, fingerprint):
        return
    payload = canonical.dumps({"facts": json.loads(text), "input": fingerprint, "name": name})
    scope.context.append(fact(EventType.BUSINESS, path, payload), sync=False)
