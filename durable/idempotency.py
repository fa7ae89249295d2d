"""The executor's side of an outside action: ask, store the intent, call, store what came back.

Invariants 4 to 7. The record decides whether a call may be made; the log only tells the body.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from durable import canonical, conf, failures, gate, inbox, retry
from durable.canonical import JSON
from durable.context import Context, Scope, fact, inside
from durable.control import Abandon, Block, ControlFlow, Replay, Suspend, Wait
from durable.errors import (
    BlockCode,
    DurableError,
    Failure,
    InvalidValue,
    KeyCompensated,
    KeyReused,
    LeaseLost,
    NotApproved,
    Retryable,
)
from durable.gate import Statement
from durable.history import StoredEvent
from durable.journal import Fact, KeyTaken, RowChanged, written
from durable.models import uuid7
from durable.registry import EffectDefinition, accepted
from durable.statuses import EventType, RecordStatus, WaitingFor
from durable.steps import MOMENT

logger = logging.getLogger(__name__)

# Seconds between two questions whether an unknown action happened, doubled each time.
RECONCILE_PAUSE = 2.0
# How often a start is tried again when what it relied on changed meanwhile.
START_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Happened:
    """What `reconcile` returns when the outside service knows the action."""

    result: JSON
    resource: str = ""


class NotFound:
    """What `reconcile` returns when the outside service has no such action."""


class StillUnknown:
    """What `reconcile` returns when the outside service could not say."""


class Call:
    """What an effect's function receives: the key and fence to send, and where to keep an id."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.key: str = attempt.sent_key
        self.fence: int = attempt.context.fence.epoch
        self.run_id: UUID = attempt.context.run.id
        self.operation_id: UUID = attempt.operation_id
        self.timeout: float = attempt.effect.timeout

    def resource(self, resource_id: str) -> None:
        """Store an outside id at once, before the call returns: one more commit."""
        self._attempt.store_resource(resource_id)


READ_RECORD = """
SELECT operation_id, status, run_id, task_key, request_hash, response, error, epoch, attempt,
    external_resource_id, settle_until, deduplicates, proposed_request, sent_request,
    started_at, clock_timestamp() AS now
FROM durable_idempotencyrecord WHERE operation_id = %s
"""
FIND_RECORD = READ_RECORD.replace(
    "WHERE operation_id = %s",
    "WHERE tenant = %s AND operation = %s AND key = %s AND generation = %s AND status <> 'void'",
)
OPEN = "SELECT durable_effect_open_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
START = "SELECT durable_effect_start_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
SETTLE = "SELECT durable_effect_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
# The same as hold + open + start, and hold + settle, each as one statement.
BEGIN = """
SELECT durable_effect_begin_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    %s, %s, %s, %s)
"""
END = "SELECT durable_effect_end_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
RESOURCE = "SELECT durable_effect_resource_v1(%s, %s, %s, %s, %s, %s, %s, %s)"
RECONCILE = "SELECT durable_effect_reconcile_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
REUSE = "SELECT durable_effect_reuse_v1(%s, %s, %s, %s, %s, %s, %s)"
MOVE = "SELECT durable_record_move_v1(%s, %s, %s)"


def perform(
    scope: Scope,
    effect: EffectDefinition,
    path: str,
    parameters: dict[str, Any],
    *,
    undoes: UUID | None = None,
) -> JSON:
    """Return the stored response of the action, or make it happen once.

    `undoes` names the record that this action compensates. Raises what the service answered
    (Failure and the effect's own failures), ApprovalRejected, ApprovalExpired, KeyReused or
    KeyCompensated; parks or blocks the run by ControlFlow.
    """
    attempt = Attempt(scope, effect, path, parameters, undoes)
    events = attempt.context.replay(path, effect.name, attempt.fingerprint)
    for event in reversed(events):
        found = _answer(event)
        if found is not None:
            return found.value()
    return attempt.make(events)


@dataclass(frozen=True)
class _Answer:
    """What the log already tells the body about a call."""

    result: JSON = None
    error: dict[str, JSON] | None = None

    def value(self) -> JSON:
        if self.error is not None:
            raise failures.load(self.error)
        return self.result


def _answer(event: StoredEvent) -> _Answer | None:
    payload = event.payload
    if event.type == EventType.EXTERNAL_COMPLETED:
        return _Answer(payload.get("result"), payload.get("error"))
    if event.type == EventType.EXTERNAL_RESOLVED and payload["outcome"] == "happened":
        return _Answer(payload["result"])
    if event.type == EventType.EXTERNAL_FAILED and payload["final"]:
        return _Answer(error=payload["error"])
    if event.type == EventType.EXTERNAL_REFUSED:
        return _Answer(error=payload["error"])
    return None


def moving(operation_id: UUID, source: list[RecordStatus], to: RecordStatus) -> Statement:
    """The guarded move of a record, apart from its calls."""
    return Statement(sql=MOVE, params=(operation_id, [s.value for s in source], to.value))


def stored_parameters(record: Mapping[str, Any]) -> dict[str, JSON]:
    """What was sent for a record, or would have been."""
    parameters: dict[str, JSON] = json.loads(record["sent_request"] or record["proposed_request"])
    return parameters


class Attempt:
    """One call of one effect by this executor, until the log has its answer."""

    def __init__(
        self,
        scope: Scope,
        effect: EffectDefinition,
        path: str,
        parameters: dict[str, Any],
        undoes: UUID | None = None,
    ) -> None:
        self.scope = scope
        self.context: Context = scope.context
        self.effect = effect
        self.path = path
        self.undoes = undoes
        self.request = canonical.dumps(parameters, path=f"{effect.name} arguments")
        # Shown = hashed = sent: from here on only what the text holds.
        self.parameters: dict[str, JSON] = json.loads(self.request)
        self.fingerprint = canonical.short_digest(self.request)
        self.key = effect.text(effect.key, self.parameters)
        canonical.check_text(self.key, f"{effect.name} key")
        self.hash = canonical.digest("request", f"{effect.operation}\n{self.request}")
        self.operation_id = uuid7()
        self.guarded = False

    @property
    def sent_key(self) -> str:
        """The key as the outside service sees it."""
        suffix = ":undo" if self.effect.compensates else ""
        generation = self.context.run.generation
        return self.key + suffix + (f":g{generation}" if generation > 1 else "")

    # The loop ------------------------------------------------------------------------------

    def make(self, events: list[StoredEvent]) -> JSON:
        """Bring the action to an answer, from whatever the log and the record say so far."""
        known = next(
            (e.payload["operation_id"] for e in reversed(events) if "operation_id" in e.payload),
            None,
        )
        if known is not None:
            self.operation_id = UUID(known)
            self._obey_backoff(events)
            answer = self._look_at_record(events)
            if answer is not None:
                return answer.value()
        for _ in range(START_TRIES):
            answer = self._start_and_call()
            if answer is not None:
                return answer.value()
        self.context.stop(Block(BlockCode.APPROVAL_MISSING, "The approval kept changing."))

    def _start_and_call(self) -> _Answer | None:
        """One try: start, call, store. None: what it relied on has changed, look again."""
        self.context.check(self.scope)
        try:
            started = self._start()
        except KeyTaken as taken:
            return self._meet(taken)
        except (NotApproved, RowChanged):
            return None
        return self._call() if started else None

    def _obey_backoff(self, events: list[StoredEvent]) -> None:
        last = events[-1]
        if last.type == EventType.EXTERNAL_FAILED and "due" in last.payload:
            due = datetime.fromisoformat(last.payload["due"])
            if due > self.context.now():
                self._suspend(WaitingFor.RETRY, due=due)

    def _look_at_record(self, events: list[StoredEvent]) -> _Answer | None:
        """What the record of an earlier try says. None: it may be started (again)."""
        record = self._read()
        if record["status"] == RecordStatus.UNKNOWN:
            return self._resolve(record, events)
        if record["status"] in (RecordStatus.SUCCEEDED, RecordStatus.COMPENSATED):
            return self._reuse(record)
        if record["status"] == RecordStatus.FAILED:
            self._refuse_forgotten_key(record)
        return None

    def _refuse_forgotten_key(self, record: dict[str, Any]) -> None:
        """Past `key_valid_for` the service no longer knows the key: ask it, or a person, first."""
        valid_for = self.effect.key_valid_for
        if valid_for is None or record["now"] - record["started_at"] < timedelta(seconds=valid_for):
            return
        if self.effect.reconcile is not None and self._said()[0] == "not_found":
            return
        resumed = self.context.history.latest(EventType.RESUME_REQUESTED)
        if resumed is None or resumed.seq < self._events()[-1].seq:
            self.context.stop(
                Block(
                    BlockCode.KEY_EXPIRED,
                    f"The service remembers the key {self.key!r} for {valid_for:g} seconds only;"
                    " sending it again could do it twice.",
                )
            )

    def _read(self) -> dict[str, Any]:
        rows = self.context.read(Statement(sql=READ_RECORD, params=(self.operation_id,)))[0]
        if not rows:
            self.context.stop(Block(BlockCode.STATE_UNREADABLE, "The action's record is gone."))
        return rows[0]

    # Asking the gate and starting -------------------------------------------------------------

    def _action(self) -> gate.Action:
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
            title=effect.text(effect.title, self.parameters) or effect.name,
            target=effect.text(effect.target, self.parameters),
            amount=effect.text(effect.amount, self.parameters),
            parameters=self.parameters,
            requested_by=run.started_by,
            undo=effect.undo,
        )

    def _start(self) -> bool:
        """Store the intent. False: nothing was started, look again. Parks while undecided."""
        permit: tuple[Statement, ...] = ()
        approval_version = None
        verdict = self._verdict()
        if isinstance(verdict, gate.Pending):
            self._suspend(WaitingFor.APPROVAL, due=verdict.decide_by)
        if isinstance(verdict, gate.Ask):
            self._ask(verdict)
        if isinstance(verdict, gate.Refused):
            self._refuse(verdict.error)
        if isinstance(verdict, gate.Allowed):
            permit = (verdict.statement,)
            approval_version = verdict.approval_version
        undoing = self._moving_original(
            [RecordStatus.SUCCEEDED, RecordStatus.COMPENSATING], RecordStatus.COMPENSATING
        )
        if permit or undoing:
            self.context.write(self._opening(), *permit, *undoing, self._starting(approval_version))
        else:
            self._begin()
        return True

    def _begin(self) -> None:
        """Open and start in one statement: nobody has to allow it and nothing moves with it."""
        context, effect, run = self.context, self.effect, self.context.run
        params = (
            self.operation_id,
            run.tenant,
            effect.operation,
            self.key,
            run.generation,
            self.hash,
            self.request,
            self.path,
            context.fence.phase.value,
            timedelta(seconds=effect.timeout),
            timedelta(seconds=effect.settle),
            effect.deduplicates,
            context.fence.ttl,
            "main",
            self._requested(),
        )
        context.call(BEGIN, params, events=1)

    def _requested(self) -> str:
        effect = self.effect
        return self._payload(
            operation=effect.operation, key=self.key, hash=self.hash, timeout=effect.timeout
        )

    def _verdict(self) -> gate.Verdict | None:
        """What the gate says now. None: nobody needs to be asked."""
        guard = gate.current()
        lookup = guard.lookup(self._action()) if guard else None
        self.guarded = lookup is not None
        if guard is None or lookup is None:
            return None
        run = self.context.run
        find = Statement(
            sql=FIND_RECORD,
            params=(run.tenant, self.effect.operation, self.key, run.generation),
        )
        records, rows = self.context.read(find, lookup)
        if records:
            # Judge and ask under the record that the key already has.
            if records[0]["status"] == RecordStatus.SUCCEEDED:
                raise KeyTaken("succeeded", str(records[0]["operation_id"]))
            if records[0]["operation_id"] != self.operation_id:
                own = records[0]["run_id"] == run.id
                if not own and not self._is_free(records[0]):
                    raise KeyTaken("busy", str(records[0]["operation_id"]))
                self.operation_id = records[0]["operation_id"]
        try:
            return guard.judge(self._action(), rows)
        except NotApproved as error:
            self.context.stop(Block(BlockCode.APPROVAL_MISSING, str(error)))

    def _is_free(self, record: dict[str, Any]) -> bool:
        """Whether the record's run has ended without sending anything that may have worked."""
        rows = self.context.read(
            Statement(
                sql="SELECT status FROM durable_run WHERE id = %s", params=(record["run_id"],)
            )
        )[0]
        ended = rows[0]["status"] in ("succeeded", "failed", "cancelled")
        return ended and record["status"] in (RecordStatus.PREPARED, RecordStatus.FAILED)

    def _opening(self) -> Statement:
        run = self.context.run
        return Statement(
            sql=OPEN,
            params=(
                run.id,
                self.operation_id,
                run.tenant,
                self.effect.operation,
                self.key,
                run.generation,
                self.hash,
                self.request,
                self.path,
                self.context.fence.phase.value,
            ),
        )

    def _starting(self, approval_version: int | None) -> Statement:
        context, effect = self.context, self.effect
        return Statement(
            sql=START,
            params=(
                context.run.id,
                self.operation_id,
                context.fence.epoch,
                self.hash,
                self.request,
                timedelta(seconds=effect.timeout),
                timedelta(seconds=effect.settle),
                effect.deduplicates,
                approval_version,
                context.fence.phase.value,
                context.fence.ttl,
                "main",
                self.path,
                self._requested(),
            ),
        )

    def _ask(self, ask: gate.Ask) -> NoReturn:
        """Store record and request in one transaction, then wait."""
        payload = canonical.dumps(
            {
                **ask.facts,
                "input": self.fingerprint,
                "name": self.effect.name,
                "operation_id": str(self.operation_id),
            }
        )
        self.context.write(
            self._opening(),
            ask.statement,
            self._written(EventType.APPROVAL_REQUESTED, payload),
        )
        self._suspend(WaitingFor.APPROVAL, due=ask.decide_by)

    def _refuse(self, error: Exception) -> NoReturn:
        """A person, or time, said no: the intent is void and the body sees why."""
        stored = failures.dump(error)
        self.context.write(
            Statement(
                sql=MOVE,
                params=(self.operation_id, [RecordStatus.PREPARED.value], RecordStatus.VOID.value),
            ),
            self._written(EventType.EXTERNAL_REFUSED, self._payload(error=stored)),
        )
        raise failures.load(stored)

    # The key was met ------------------------------------------------------------------------------

    def _meet(self, taken: KeyTaken) -> _Answer | None:
        """The key has a record already (invariant 6). None: look again."""
        other = UUID(taken.operation_id)
        if taken.how in ("own", "free"):
            self.operation_id = other
            return None
        if taken.how == "other_request":
            return self._decline(
                other,
                KeyReused(
                    f"The key {self.key!r} of {self.effect.operation} was used with another request."
                ),
            )
        if taken.how == "compensated":
            return self._decline(other, KeyCompensated())
        self.operation_id = other
        record = self._read()
        if record["status"] == RecordStatus.SUCCEEDED:
            return self._reuse(record)
        if record["run_id"] == self.context.run.id and record["task_key"] == self.path:
            if record["status"] == RecordStatus.UNKNOWN:
                return self._resolve(record, self.context.history.of(self.path))
            self.context.stop(Replay())
        self._wait_for(record)

    def _decline(self, other: UUID, error: DurableError) -> _Answer:
        """The key cannot be used like this; the body sees why, now and on every replay."""
        self.operation_id = other
        stored = failures.dump(error)
        self.context.append(
            self._fact(EventType.EXTERNAL_REFUSED, self._payload(error=stored)), sync=True
        )
        return _Answer(error=stored)

    def _wait_for(self, record: dict[str, Any]) -> NoReturn:
        events = self.context.history.of(self.path)
        if not any(event.type == EventType.EXTERNAL_BUSY for event in events):
            payload = canonical.dumps(
                {
                    "held_by": str(record["run_id"]),
                    "input": self.fingerprint,
                    "key": self.key,
                    "name": self.effect.name,
                    "operation": self.effect.operation,
                }
            )
            self.context.append(self._fact(EventType.EXTERNAL_BUSY, payload), sync=True)
        self._suspend(WaitingFor.RECORD, record=record["operation_id"])

    def _reuse(self, record: dict[str, Any]) -> _Answer | None:
        """The action happened, here or elsewhere: its stored response answers, nothing is sent."""
        if record["status"] == RecordStatus.COMPENSATED:
            return self._decline(record["operation_id"], KeyCompensated())
        if record["request_hash"] != self.hash:
            return self._decline(
                record["operation_id"],
                KeyReused(
                    f"The key {self.key!r} of {self.effect.operation} was used with another request."
                ),
            )
        elsewhere = (record["run_id"], record["task_key"]) != (self.context.run.id, self.path)
        stored = json.loads(record["error"]) if record["error"] else None
        answer = _Answer(json.loads(record["response"] or "null"), stored)
        payload = self._outcome_payload(answer, record["external_resource_id"], reused=elsewhere)
        try:
            self.context.write(
                Statement(
                    sql=REUSE,
                    params=(
                        self.context.run.id,
                        record["operation_id"],
                        self.hash,
                        self.context.fence.ttl,
                        "main",
                        self.path,
                        payload,
                    ),
                )
            )
        except RowChanged:
            return None
        return answer

    # Calling ------------------------------------------------------------------------------------------

    def _call(self) -> _Answer | None:
        """Make the call and store what it returned. None: it did not happen, try again."""
        context = self.context
        try:
            # The commit took time: a lease that is nearly over must not start anything outside.
            context.fence.check()
        except LeaseLost:
            context.stop(Abandon())
        call = Call(self)
        try:
            with inside(self.effect.name, context.fence):
                value = self.effect.function(
                    call, **accepted(self.effect.function, self.parameters)
                )
        except (ControlFlow, KeyboardInterrupt, SystemExit):
            raise
        except Retryable as error:
            return self._failed(error, final=False)
        except (Failure, *self.effect.failures) as error:
            return self._failed(error, final=True)
        except Exception as error:
            return self._unclear(error)
        return self._succeeded(value)

    def _succeeded(self, value: object) -> _Answer:
        try:
            answer = _Answer(json.loads(canonical.dumps(value, path=f"{self.effect.name} result")))
        except InvalidValue as error:
            # It happened; only what it returned cannot be kept. It is not done again.
            answer = _Answer(error=failures.dump(error))
        self._settle(
            RecordStatus.SUCCEEDED,
            EventType.EXTERNAL_COMPLETED,
            self._outcome_payload(answer, None),
            answer=answer,
        )
        return answer

    def _failed(self, error: Exception, *, final: bool) -> _Answer | None:
        """The service said that it did not happen."""
        stored = failures.dump(error)
        tries = 1 + sum(e.type == EventType.EXTERNAL_FAILED for e in self._events())
        decision = (
            None
            if final
            else retry.decide(
                self.effect.retry, error, attempt=tries, elapsed=0.0, random=random.random
            )
        )
        if decision is None:
            answer = _Answer(error=stored)
            self._settle(
                RecordStatus.FAILED,
                EventType.EXTERNAL_FAILED,
                self._payload(error=stored, final=True),
                answer=answer,
            )
            return answer
        due = self.context.now() + timedelta(seconds=decision.delay)
        self._settle(
            RecordStatus.FAILED,
            EventType.EXTERNAL_FAILED,
            self._payload(error=stored, final=False, due=due.isoformat()),
            answer=_Answer(error=stored),
        )
        if decision.delay > MOMENT:
            self._suspend(WaitingFor.RETRY, due=due)
        time.sleep(decision.delay)
        return None

    def _unclear(self, error: Exception) -> _Answer | None:
        """No answer, or one that nobody classified: it may have happened (invariant 5)."""
        stored = failures.dump(error)
        payload = self._payload(error=stored, operation=self.effect.operation, key=self.key)
        self._settle(
            RecordStatus.UNKNOWN, EventType.EXTERNAL_UNKNOWN, payload, answer=_Answer(error=stored)
        )
        return self._resolve(self._read(), self._events())

    def _settle(
        self, status: RecordStatus, type: EventType, payload: str, *, answer: _Answer
    ) -> None:
        """Store the outcome under the epoch that started the call; wake who waits for it."""
        context = self.context
        response = canonical.dumps(answer.result) if answer.error is None else None
        error = canonical.dumps(answer.error) if answer.error is not None else None
        follow = (*self._permit(status), *self._undone(status))
        outcome = (self.operation_id, status.value, response, error)
        told = (context.fence.ttl, type.value, "main", self.path, payload)
        try:
            if follow:
                settling = Statement(
                    sql=SETTLE,
                    params=(
                        context.run.id,
                        self.operation_id,
                        context.fence.epoch,
                        *outcome[1:],
                        None,
                        *told,
                    ),
                )
                waiting = context.journal.write(context.fence, settling, *follow)[0][0][0]
            else:
                waiting = context.journal.call(context.fence, END, (*outcome, *told), events=1)
        except LeaseLost:
            # Not an outcome any more, but whoever resolves it should know.
            context.journal.keep_evidence(
                context.fence,
                task_key=self.path,
                kind=status.value,
                payload=payload,
                operation_id=self.operation_id,
            )
            context.stop(Abandon())
        except RowChanged:
            context.stop(Replay())
        self._remember(type, payload)
        for run_id in waiting:
            inbox.poke(run_id)

    def _permit(self, status: RecordStatus) -> tuple[Statement, ...]:
        guard = gate.current()
        if guard is None or not self.guarded:
            return ()
        outcome: dict[RecordStatus, gate.Outcome] = {
            RecordStatus.SUCCEEDED: "succeeded",
            RecordStatus.FAILED: "failed",
            RecordStatus.UNKNOWN: "unknown",
        }
        return (guard.settle(self.operation_id, outcome[status]),)

    def _undone(self, status: RecordStatus) -> tuple[Statement, ...]:
        if status != RecordStatus.SUCCEEDED:
            return ()
        return self._moving_original([RecordStatus.COMPENSATING], RecordStatus.COMPENSATED)

    def _moving_original(
        self, source: list[RecordStatus], to: RecordStatus
    ) -> tuple[Statement, ...]:
        """The move of the record that this action undoes, if it undoes one."""
        return () if self.undoes is None else (moving(self.undoes, source, to),)

    def store_resource(self, resource_id: str) -> None:
        canonical.check_text(resource_id, "resource id")
        context = self.context
        payload = canonical.dumps({"operation_id": str(self.operation_id), "resource": resource_id})
        try:
            context.write(
                Statement(
                    sql=RESOURCE,
                    params=(
                        context.run.id,
                        self.operation_id,
                        context.fence.epoch,
                        resource_id,
                        context.fence.ttl,
                        "main",
                        self.path,
                        payload,
                    ),
                )
            )
        except RowChanged:
            context.stop(Replay())

    # Unknown ---------------------------------------------------------------------------------------------

    def resolve(self, operation_id: UUID) -> None:
        """Bring an action whose outcome is unknown to a known one, or park or block the run."""
        self.operation_id = operation_id
        record = self._read()
        if record["status"] == RecordStatus.UNKNOWN:
            self._resolve(record, self._events())

    def _resolve(self, record: dict[str, Any], events: list[StoredEvent]) -> _Answer | None:
        """Ask the outside service. None: it did not happen and may be started again."""
        asked = [e for e in events if e.type == EventType.EXTERNAL_RECONCILED]
        wanted = bool(events) and events[-1].type == EventType.EXTERNAL_RECONCILE_REQUESTED
        self.guarded = True  # the policy may have gone; its permit has not
        if asked and "until" in asked[-1].payload and not wanted:
            until = datetime.fromisoformat(asked[-1].payload["until"])
            if until > record["now"]:
                self._suspend(WaitingFor.RECONCILE, due=until)
        if self.effect.reconcile is None:
            self._ask_person("The service cannot be asked whether it happened.")
        return self._ask_outside(record, asked, wanted)

    def _ask_outside(
        self, record: dict[str, Any], asked: list[StoredEvent], wanted: bool
    ) -> _Answer | None:
        said, answer, resource = self._said()
        until = self._ask_again_at(record, said, asked)
        payload: dict[str, JSON] = {"operation_id": str(self.operation_id), "outcome": said}
        if until is not None:
            payload["until"] = until.isoformat()
        text = canonical.dumps(payload)
        verdict = self._store_said(said, answer, resource, until, text)
        self._remember(EventType.EXTERNAL_RECONCILED, text)
        if verdict == RecordStatus.SUCCEEDED:
            return answer
        if verdict == RecordStatus.FAILED:
            return None
        unsure = sum(e.payload["outcome"] == "still_unknown" for e in asked)
        if said == "still_unknown" and (wanted or unsure + 1 >= conf.reconcile_attempts()):
            self._ask_person("The service could not say whether it happened.")
        self._suspend(WaitingFor.RECONCILE, due=until)

    def _said(self) -> tuple[str, _Answer, str | None]:
        """Ask `reconcile`; whatever goes wrong there means that we still do not know."""
        assert self.effect.reconcile is not None  # noqa: S101
        try:
            with inside(f"reconcile of {self.effect.name}", self.context.fence):
                said = self.effect.reconcile(
                    Call(self), **accepted(self.effect.reconcile, self.parameters)
                )
            if isinstance(said, Happened):
                result = json.loads(canonical.dumps(said.result, path="reconcile result"))
                return "happened", _Answer(result), said.resource or None
            if said is NotFound or isinstance(said, NotFound):
                return "not_found", _Answer(), None
        except (ControlFlow, KeyboardInterrupt, SystemExit):
            raise
        except Exception:
            logger.warning("reconcile of %s failed", self.effect.name, exc_info=True)
        return "still_unknown", _Answer(), None

    def _ask_again_at(
        self, record: dict[str, Any], said: str, asked: list[StoredEvent]
    ) -> datetime | None:
        if said == "happened":
            return None
        if said == "not_found":
            settled: datetime = record["settle_until"]
            return settled if settled > record["now"] and not record["deduplicates"] else None
        pause: float = min(RECONCILE_PAUSE * 2 ** min(len(asked), 10), 600.0)
        now: datetime = record["now"]
        return now + timedelta(seconds=pause)

    def _store_said(
        self, said: str, answer: _Answer, resource: str | None, until: datetime | None, payload: str
    ) -> RecordStatus:
        context = self.context
        happened = said == "happened"
        verdict = {"happened": RecordStatus.SUCCEEDED, "not_found": RecordStatus.FAILED}.get(
            said, RecordStatus.UNKNOWN
        )
        if until is not None:
            verdict = RecordStatus.UNKNOWN  # "not found" is not believed yet
        storing = Statement(
            sql=RECONCILE,
            params=(
                context.run.id,
                self.operation_id,
                said if verdict != RecordStatus.UNKNOWN else "unknown",
                canonical.dumps(answer.result) if happened else None,
                resource,
                context.fence.ttl,
                "main",
                self.path,
                payload,
                self._outcome_payload(answer, resource),
            ),
        )
        try:
            context.write(storing, *self._permit(verdict), *self._undone(verdict))
        except RowChanged:
            context.stop(Replay())  # a person resolved it meanwhile: go on from what they said
        return verdict

    def _ask_person(self, why: str) -> NoReturn:
        self.context.stop(
            Block(
                BlockCode.EFFECT_UNKNOWN,
                f"It is not known whether {self.effect.name!r} with the key {self.key!r} happened."
                f" {why}",
            )
        )

    # Small things ----------------------------------------------------------------------------------------

    def _events(self) -> list[StoredEvent]:
        return self.context.history.of(self.path)

    def _remember(self, type: EventType, payload: str) -> None:
        """Keep the in-memory history in step with what this executor just wrote."""
        self.context.history.add(
            [
                {
                    "seq": self.context.fence.last_seq,
                    "type": type.value,
                    "task_key": self.path,
                    "actor": "",
                    "payload": payload,
                }
            ]
        )

    def _payload(self, **parts: JSON) -> str:
        return canonical.dumps(
            {
                "input": self.fingerprint,
                "name": self.effect.name,
                "operation_id": str(self.operation_id),
                **parts,
            }
        )

    def _outcome_payload(
        self, answer: _Answer, resource: str | None, *, reused: bool = False
    ) -> str:
        parts: dict[str, JSON] = {"resource": resource}
        parts["error" if answer.error is not None else "result"] = (
            answer.error if answer.error is not None else answer.result
        )
        if reused:
            parts["reused"] = True
        return self._payload(**parts)

    def _fact(self, type: EventType, payload: str) -> Fact:
        return fact(type, self.path, payload)

    def _written(self, type: EventType, payload: str) -> Statement:
        return written(self.context.fence, self._fact(type, payload))

    def _suspend(
        self, reason: WaitingFor, *, due: datetime | None = None, record: UUID | None = None
    ) -> NoReturn:
        self.context.suspend(self.scope, Suspend(Wait(waiting_for=reason, due=due, record=record)))
