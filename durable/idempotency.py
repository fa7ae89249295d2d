"""The executor's side of an outside action: ask, store the intent, call, store what came back.

Invariants 4 to 7. The record decides whether a call may be made; the log only tells the body.
"""

from __future__ import annotations

import json
import random
import time
from asyncio import CancelledError
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from durable import answers, canonical, failures, gate, inbox, reconciliation, records, retry
from durable.answers import Answer
from durable.canonical import JSON
from durable.context import Context, Scope, inside
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
from durable.journal import KeyMet, KeyTaken, RowChanged
from durable.proposals import Proposal
from durable.records import Record
from durable.registry import EffectDefinition, accepted
from durable.statuses import EventType, Phase, RecordStatus, WaitingFor
from durable.steps import MOMENT

# How often a start is tried again when what it relied on changed meanwhile.
START_TRIES = 5
# A crash or two must not stop an action, however few tries its author allows.
FEWEST_TRIES = 3

_PERMIT_OUTCOMES: dict[RecordStatus, gate.Outcome] = {
    RecordStatus.SUCCEEDED: "succeeded",
    RecordStatus.FAILED: "failed",
    RecordStatus.UNKNOWN: "unknown",
}


class Call:
    """What an effect's function receives: the key and fence to send, and where to keep an id."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self.key: str = proposal.sent_key
        self.fence: int = proposal.context.fence.epoch
        self.run_id: UUID = proposal.context.run.id
        self.operation_id: UUID = proposal.operation_id
        self.timeout: float = proposal.effect.timeout  # seconds

    def resource(self, resource_id: str) -> None:
        """Store an outside id at once, before the call returns: one more commit."""
        context = self._proposal.context
        try:
            context.write(self._proposal.storing_resource(resource_id))
        except RowChanged:
            context.stop(Replay())


def perform(
    scope: Scope,
    effect: EffectDefinition,
    path: str,
    parameters: Mapping[str, Any],
    *,
    undoes: UUID | None = None,
) -> JSON:
    """Return the stored response of the action, or make it happen once.

    `undoes` names the record that this action compensates. Raises what the service answered
    (Failure and the effect's own failures), ApprovalRejected, ApprovalExpired, KeyReused or
    KeyCompensated; parks or blocks the run by ControlFlow.
    """
    attempt = Attempt(scope, Proposal(scope.context, effect, path, parameters), undoes)
    events = scope.context.replay(path, effect.name, attempt.proposal.fingerprint)
    answer = answers.recorded(events)
    if answer is None:
        with scope.context.faultless():
            answer = attempt.make(events)
    return answer.value()


class Attempt:
    """One call of one effect by this executor, until the log has its answer."""

    def __init__(self, scope: Scope, proposal: Proposal, undoes: UUID | None = None) -> None:
        self.scope = scope
        self.context: Context = scope.context
        self.proposal = proposal
        self.effect = proposal.effect
        self.undoes = undoes
        self.guarded = False
        self.before: tuple[Statement, ...] = ()  # what must commit together with the next start
        self.sent_again = False  # an earlier call may still land
        self.changes = 0  # what a start relied on was no longer so

    # The loop ------------------------------------------------------------------------------

    def make(self, events: list[StoredEvent]) -> Answer:
        """Bring the action to an answer, from whatever the log and the record say so far."""
        known = [e.payload["operation_id"] for e in events if "operation_id" in e.payload]
        if known:
            self.proposal.operation_id = UUID(known[-1])
            self._obey_backoff(events)
            # Without a call so far the record holds nothing that the gate's own look does not.
            called = any(event.type == EventType.EXTERNAL_REQUESTED for event in events)
            answer = self._look_at_record() if called else None
            if answer is not None:
                return answer
        while self.changes < START_TRIES:
            answer = self._start_and_call()
            if answer is not None:
                return answer
        self._block(BlockCode.APPROVAL_MISSING, "The approval kept changing.")

    def _start_and_call(self) -> Answer | None:
        """One try: start, call, store. None: what it relied on has changed, look again."""
        self.context.check(self.scope)
        try:
            refused = self._start()
        except KeyTaken as taken:
            return self._meet(taken)
        except (NotApproved, RowChanged):
            self.changes += 1
            return None
        return refused or self._call()

    def _obey_backoff(self, events: list[StoredEvent]) -> None:
        last = events[-1]
        if last.type == EventType.EXTERNAL_FAILED and "due" in last.payload:
            due = datetime.fromisoformat(last.payload["due"])
            if due > self.context.now():
                self._suspend(WaitingFor.RETRY, due=due)

    def _look_at_record(self) -> Answer | None:
        """What the record of an earlier try says. None: it may be started (again)."""
        record = self._read()
        if record["status"] == RecordStatus.UNKNOWN:
            return self._resolve(record)
        if record["status"] in (RecordStatus.SUCCEEDED, RecordStatus.COMPENSATED):
            return self._reuse(record)
        if record["status"] == RecordStatus.FAILED:
            self._refuse_forgotten_key(record)
            self._refuse_endless_tries(record)
        return None

    def _refuse_forgotten_key(self, record: Record) -> None:
        """Past `key_valid_for` the service no longer knows the key: ask it, or a person, first."""
        limit = self.effect.key_valid_for
        if limit is None or record["now"] - record["started_at"] < timedelta(seconds=limit):
            return
        said = reconciliation.ask(self.proposal, Call(self.proposal)).outcome
        if said != "not_found" and (said == "happened" or not self._was_resumed()):
            self._block(
                BlockCode.KEY_EXPIRED,
                f"The service remembers the key {self.proposal.key!r} for {limit:g} seconds only;"
                " sending it again could do it twice.",
            )

    def _was_resumed(self) -> bool:
        """Whether a person, who knows what this call did, let the run try again."""
        resumed = self.context.history.latest(EventType.RESUME_REQUESTED)
        events = self._events()
        return resumed is not None and (not events or resumed.seq > events[-1].seq)

    def _refuse_endless_tries(self, record: Record) -> None:
        """Sent and not found again and again: a person looks before it is sent once more."""
        sent, most = record["attempt"], max(self.effect.retry.attempts, FEWEST_TRIES)
        settled_by_hand = any(e.type == EventType.EXTERNAL_RESOLVED for e in self._events())
        if sent >= most and not settled_by_hand and not self._was_resumed():
            self._block(
                BlockCode.RETRIES_EXHAUSTED,
                f"{self.effect.name!r} was sent {sent} times and the service never had it.",
            )

    def _read(self) -> Record:
        statement = Statement(sql=records.READ, params=(self.proposal.operation_id,))
        rows = self.context.read(statement)[0]
        if not rows:
            self._block(BlockCode.STATE_UNREADABLE, "The action's record is gone.")
        return rows[0]

    # Asking the gate and starting -------------------------------------------------------------

    def _start(self) -> Answer | None:
        """Store the intent; the answer is that somebody refused it. Parks while undecided.

        Raises KeyTaken, NotApproved, RowChanged.
        """
        permit: tuple[Statement, ...] = ()
        approval_version = None
        verdict = self._verdict()
        match verdict:
            case gate.Pending():
                self._suspend(WaitingFor.APPROVAL, due=verdict.decide_by)
            case gate.Ask():
                self._ask(verdict)
            case gate.Refused():
                return self._refuse(verdict.error)
            case gate.Allowed():
                permit, approval_version = (verdict.statement,), verdict.approval_version
        undoing = self._moving_original(
            [RecordStatus.SUCCEEDED, RecordStatus.COMPENSATING], RecordStatus.COMPENSATING
        )
        if permit or undoing or self.before or not self._begin():
            proposal = self.proposal
            starting = proposal.starting(approval_version)
            self.context.write(*self.before, proposal.opening(), *permit, *undoing, starting)
            self.sent_again, self.before = bool(self.before), ()
        return None

    def _begin(self) -> bool:
        """Start in one statement; False when the key has a record, which needs a closer look."""
        try:
            self.context.call(records.BEGIN, self.proposal.beginning(), events=1)
        except KeyMet:
            return False
        return True

    def _verdict(self) -> gate.Verdict | None:
        """What the gate says now. None: nobody needs to be asked."""
        guard = gate.current()
        lookup = guard.lookup(self.proposal.action()) if guard else None
        self.guarded = lookup is not None
        if guard is None or lookup is None:
            return None
        found, rows = self.context.read(self.proposal.find(), lookup)
        if found:
            self._adopt(found[0])
        try:
            return guard.judge(self.proposal.action(), rows)
        except NotApproved as error:
            self._block(BlockCode.APPROVAL_MISSING, str(error))

    def _adopt(self, record: Record) -> None:
        """Judge and ask under the record that the key already has, if it can be ours."""
        if record["status"] in (RecordStatus.SUCCEEDED, RecordStatus.COMPENSATED):
            raise KeyTaken(record["status"], str(record["operation_id"]))
        startable = record["status"] in (RecordStatus.PREPARED, RecordStatus.FAILED)
        if record["run_id"] != self.context.run.id:
            startable = startable and self._is_free(record)
        elif record["task_key"] == self.proposal.path:
            startable = True
        if not startable:
            raise KeyTaken("busy", str(record["operation_id"]))
        self.proposal.operation_id = record["operation_id"]

    def _is_free(self, record: Record) -> bool:
        """Whether the record's run has ended without sending anything that may have worked."""
        status = Statement(
            sql="SELECT status FROM durable_run WHERE id = %s", params=(record["run_id"],)
        )
        ended = self.context.read(status)[0][0]["status"] in ("succeeded", "failed", "cancelled")
        return ended and record["status"] in (RecordStatus.PREPARED, RecordStatus.FAILED)

    def _ask(self, ask: gate.Ask) -> NoReturn:
        """Store record and request in one transaction, then wait."""
        self._refuse_a_vanished_request(ask)
        proposal = self.proposal
        # The gate's facts first: they may not overwrite what identifies the call.
        facts = {**ask.facts, **json.loads(proposal.payload())}
        asked = proposal.written(EventType.APPROVAL_REQUESTED, canonical.dumps(facts))
        self.context.write(proposal.opening(), ask.statement, asked)
        self._suspend(WaitingFor.APPROVAL, due=ask.decide_by)

    def _refuse_a_vanished_request(self, ask: gate.Ask) -> None:
        """Somebody was asked, and the database has no trace of it: a person must look first."""
        asked = [e.seq for e in self._events() if e.type == EventType.APPROVAL_REQUESTED]
        if not asked or ask.instead_of is not None:
            return
        resumed = self.context.history.latest(EventType.RESUME_REQUESTED)
        if resumed is None or resumed.seq < asked[-1]:
            self._block(
                BlockCode.APPROVAL_MISSING,
                f"The request for approval that event {asked[-1]} of the log names is gone."
                " Resume the run to ask again.",
            )

    def _refuse(self, error: Exception) -> Answer:
        """A person, or time, said no: the intent is void and the body sees why."""
        answer = Answer(error=failures.dump(error))
        refused = self.proposal.payload(error=answer.error)
        self.context.write(
            # What was sent before stays failed.
            Statement(sql=records.VOID, params=(self.proposal.operation_id, self.context.run.id)),
            self.proposal.written(EventType.EXTERNAL_REFUSED, refused),
        )
        return answer

    # The key was met ----------------------------------------------------------------------------

    def _meet(self, taken: KeyTaken) -> Answer | None:
        """The key has a record already (invariant 6). None: look again."""
        self.proposal.operation_id = UUID(taken.operation_id)
        match taken.how:
            case "own" | "free":
                record = self._read()
                if record["status"] == RecordStatus.FAILED:
                    self._refuse_forgotten_key(record)
                self.changes += 1
                return None
            case "other_request":
                return self._decline(self._key_reused())
            case "compensated":
                return self._decline(KeyCompensated())
        record = self._read()
        if record["status"] == RecordStatus.SUCCEEDED:
            return self._reuse(record)
        if (record["run_id"], record["task_key"]) == (self.context.run.id, self.proposal.path):
            if record["status"] == RecordStatus.UNKNOWN:
                return self._resolve(record)
            self.context.stop(Replay())
        self._wait_for(record)

    def _key_reused(self) -> KeyReused:
        return KeyReused(
            f"The key {self.proposal.key!r} of {self.effect.operation} was used before"
            " with another request."
        )

    def _decline(self, error: DurableError) -> Answer:
        """The key cannot be used like this; the body sees why, now and on every replay."""
        answer = Answer(error=failures.dump(error))
        refused = self.proposal.payload(error=answer.error)
        self.context.append(self.proposal.fact(EventType.EXTERNAL_REFUSED, refused), sync=True)
        return answer

    def _wait_for(self, record: Record) -> NoReturn:
        """Another run, or branch, holds the key: wait until it is settled."""
        if not any(event.type == EventType.EXTERNAL_BUSY for event in self._events()):
            proposal = self.proposal
            busy = canonical.dumps(
                {
                    "held_by": str(record["run_id"]),
                    "input": proposal.fingerprint,
                    "key": proposal.key,
                    "name": self.effect.name,
                    "operation": self.effect.operation,
                }
            )
            self.context.append(proposal.fact(EventType.EXTERNAL_BUSY, busy), sync=True)
        self._suspend(WaitingFor.RECORD, record=record["operation_id"])

    def _reuse(self, record: Record) -> Answer | None:
        """The action happened, here or elsewhere: its stored response answers, nothing is sent."""
        if record["status"] == RecordStatus.COMPENSATED:
            return self._decline(KeyCompensated())
        if record["request_hash"] != self.proposal.hash:
            return self._decline(self._key_reused())
        here = (self.context.run.id, self.proposal.path)
        stored = json.loads(record["error"]) if record["error"] else None
        answer = Answer(json.loads(record["response"] or "null"), stored)
        payload = self.proposal.answered(
            answer,
            record["external_resource_id"],
            reused=(record["run_id"], record["task_key"]) != here,
        )
        try:
            self.context.write(self.proposal.reusing(record, payload))
        except RowChanged:
            return None
        return answer

    # Calling --------------------------------------------------------------------------------------

    def _call(self) -> Answer | None:
        """Make the call and store what it returned. None: it did not happen, try again."""
        context, effect = self.context, self.effect
        try:
            # The commit took time: a lease that is nearly over must not start anything outside.
            context.fence.check()
        except LeaseLost:
            context.stop(Abandon())
        refusals: tuple[type[Exception], ...] = (Failure, *effect.failures)
        call = Call(self.proposal)
        try:
            with inside(effect.name, context.fence):
                value = effect.function(call, **accepted(effect.function, self.proposal.parameters))
        except (ControlFlow, KeyboardInterrupt, SystemExit):
            raise
        except Retryable as error:
            return self._failed(error, final=False)
        except refusals as error:
            return self._failed(error, final=True)
        except (Exception, CancelledError) as error:
            return self._unclear(error)
        return self._succeeded(value)

    def _succeeded(self, value: object) -> Answer:
        try:
            text = canonical.dumps_result(value, path=f"{self.effect.name} result")
            answer = Answer(json.loads(text))
        except InvalidValue as error:
            # It happened; only what it returned cannot be kept. It is not done again.
            answer = Answer(error=failures.dump(error))
        payload = self.proposal.answered(answer, None)
        self._settle(RecordStatus.SUCCEEDED, answer, EventType.EXTERNAL_COMPLETED, payload)
        return answer

    def _failed(self, error: Exception, *, final: bool) -> Answer | None:
        """The service said that it did not happen."""
        if self.sent_again:
            return self._unclear(error)  # this call did not; the one before it still may
        answer = Answer(error=failures.dump(error))
        before = [e for e in self._events() if e.type == EventType.EXTERNAL_FAILED]
        now = self.context.now()
        decision = None
        if not final:
            decision = retry.decide(
                self.effect.retry,
                error,
                attempt=len(before) + 1,
                elapsed=(now - before[0].at).total_seconds() if before else 0.0,
                random=random.random,
            )
        if decision is None:
            payload = self.proposal.payload(error=answer.error, final=True)
            self._settle(RecordStatus.FAILED, answer, EventType.EXTERNAL_FAILED, payload)
            return answer
        due = now + timedelta(seconds=decision.delay)
        payload = self.proposal.payload(error=answer.error, final=False, due=due.isoformat())
        self._settle(RecordStatus.FAILED, answer, EventType.EXTERNAL_FAILED, payload)
        if decision.delay > MOMENT:
            self._suspend(WaitingFor.RETRY, due=due)
        time.sleep(decision.delay)
        return None

    def _unclear(self, error: Exception | CancelledError) -> Answer | None:
        """No answer, or one that nobody classified: it may have happened (invariant 5)."""
        answer = Answer(error=failures.dump(error))
        payload = self.proposal.payload(
            error=answer.error, operation=self.effect.operation, key=self.proposal.key
        )
        self._settle(RecordStatus.UNKNOWN, answer, EventType.EXTERNAL_UNKNOWN, payload)
        return self._resolve(self._read())

    def _settle(self, status: RecordStatus, answer: Answer, type: EventType, payload: str) -> None:
        """Store the outcome under the epoch that started the call; wake who waits for it."""
        context, proposal = self.context, self.proposal
        follow = self._following(status)
        try:
            if follow:
                settling = proposal.settling(status, answer, type, payload)
                waiting = context.journal.write(context.fence, settling, *follow)[0][0][0]
            else:
                ending = proposal.ending(status, answer, type, payload)
                waiting = context.journal.call(context.fence, records.END, ending, events=1)
        except LeaseLost:
            # Not an outcome any more, but whoever resolves it should know.
            context.journal.keep_evidence(
                context.fence,
                task_key=proposal.path,
                kind=status.value,
                payload=payload,
                operation_id=proposal.operation_id,
            )
            context.stop(Abandon())
        except RowChanged:
            context.stop(Replay())
        context.remember(proposal.fact(type, payload))
        for run_id in waiting:
            inbox.poke(run_id)

    def _following(self, status: RecordStatus) -> tuple[Statement, ...]:
        """What moves with the record: its permit, and the record that it undoes."""
        guard = gate.current()
        permit: tuple[Statement, ...] = ()
        if guard is not None and self.guarded:
            permit = (guard.settle(self.proposal.operation_id, _PERMIT_OUTCOMES[status]),)
        if status != RecordStatus.SUCCEEDED:
            return permit
        return (
            *permit,
            *self._moving_original([RecordStatus.COMPENSATING], RecordStatus.COMPENSATED),
        )

    def _moving_original(
        self, source: list[RecordStatus], to: RecordStatus
    ) -> tuple[Statement, ...]:
        return () if self.undoes is None else (records.moving(self.undoes, source, to),)

    # Unknown --------------------------------------------------------------------------------------

    def resolve(self, operation_id: UUID) -> None:
        """Bring an action whose outcome is unknown to a known one, or park or block the run."""
        self.proposal.operation_id = operation_id
        record = self._read()
        if record["status"] == RecordStatus.UNKNOWN:
            self._resolve(record)

    def _resolve(self, record: Record) -> Answer | None:
        guard = gate.current()
        free = guard is None or guard.lookup(self.proposal.action()) is None
        forward = self.context.fence.phase == Phase.FORWARD
        self.guarded = True  # the policy may have gone; its permit has not
        said = reconciliation.resolve(
            self.scope,
            self.proposal,
            record,
            call=Call(self.proposal),
            # Once: two calls may be on their way then, and only their settling tells them apart.
            early=record["deduplicates"] and record["attempt"] == 1 and free and forward,
            follow=self._following,
        )
        if isinstance(said, reconciliation.SendAgain):
            self.before = (said.before,)
            return None
        if said is None:
            self._refuse_endless_tries(record)
        return said

    # Leaving -----------------------------------------------------------------------------------

    def _events(self) -> list[StoredEvent]:
        return self.context.history.of(self.proposal.path)

    def _block(self, code: str, reason: str) -> NoReturn:
        self.context.stop(Block(code, reason))

    def _suspend(
        self, reason: WaitingFor, *, due: datetime | None = None, record: UUID | None = None
    ) -> NoReturn:
        self.context.suspend(self.scope, Suspend(Wait(waiting_for=reason, due=due, record=record)))
