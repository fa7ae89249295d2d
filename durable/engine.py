"""Advancing one run until it ends, waits, blocks or loses its lease."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import close_old_connections

from durable import canonical, claims, compensation, failures, gate, inbox, records
from durable.canonical import JSON
from durable.claims import Claim
from durable.context import Context
from durable.control import Abandon, Block, CancelNow, ControlFlow, Replay, Suspend, Wait
from durable.errors import (
    BlockCode,
    InvalidValue,
    LeaseLost,
    WorkflowUnknown,
    failure_class,
)
from durable.gate import Statement
from durable.journal import Fact, InboxWaiting, RowBusy, journal, written
from durable.leases import Fence, heartbeat
from durable.registry import workflow as find_workflow
from durable.statuses import EventType, Phase, RecordStatus, RunStatus, WaitingFor

logger = logging.getLogger(__name__)

MOVE = "SELECT durable_move_v1(%s, %s)"
PARK = "SELECT durable_park_v1(%s, %s, %s, %s)"
BLOCK = "SELECT durable_block_v1(%s, %s, %s, %s, %s)"
FINISH = "SELECT durable_finish_v1(%s, %s, %s, %s, %s, %s, %s, %s)"
CHECKPOINT = "SELECT durable_checkpoint_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
OPENED = """
UPDATE durable_run SET claimed_seq = lease.last_seq FROM durable_lease AS lease
WHERE lease.run_id = durable_run.id AND durable_run.id = %s
"""
COMPENSATE = "UPDATE durable_lease SET phase = 'compensating' WHERE run_id = %s"

# Branches that wait for several keys look again: a row can name only one of them.
SEVERAL_KEYS = timedelta(seconds=15)
# Re-entries under one claim without anything new in the log: more means that we are confused.
MAX_REPLAYS = 10


def advance(run_id: UUID) -> bool:
    """Take the run if it is due and bring it as far as it goes. False: it was not ours to take.

    Never raises for what happens to the run; a lost database or lease leaves it to the sweep.
    """
    if heartbeat().is_failing and not heartbeat().recovers():
        return False  # a worker that could not keep a lease leaves the run to the others
    close_old_connections()
    try:
        claim = claims.claim(run_id)
    except LeaseLost as error:
        logger.warning("run %s was not claimed: %s", run_id, error)
        return False
    if claim is None:
        return False
    while claim is not None:
        fence = claim.fence
        try:
            with heartbeat().watching(fence):
                Execution(claim).drive()
            return True
        except LeaseLost:
            logger.warning("run %s: lease of epoch %s is lost", run_id, fence.epoch)
        except Exception:
            # A fault of the engine: another claim tries again, a few times, then a person looks.
            logger.exception("run %s: epoch %s stopped", run_id, fence.epoch)
            return True
        if fence.outlived:
            # Renewals do not get through here: until a probe does, nothing new is taken.
            heartbeat().is_failing = True
            return True
        close_old_connections()
        # Often only our certainty is lost: a connection, an answer to COMMIT, the tail of a
        # database that crashed. Our own lease may be taken back at once; anybody else's may not.
        claim = claims.reclaim(run_id, fence.owner, patience=fence.ttl.total_seconds())
    return True


class Execution:
    """One claim's work on its run."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.fence: Fence = claim.fence
        self.run = claim.run

    def drive(self) -> None:
        """Advance until the run is let go. Raises LeaseLost."""
        replays = 0
        while True:
            head = self.fence.last_seq
            try:
                self._advance_once()
                return
            except (InboxWaiting, Replay, RowBusy):
                self._move()
            replays = 0 if self.fence.last_seq > head else replays + 1
            if replays >= MAX_REPLAYS:
                logger.error("run %s cannot settle; leaving it to another claim", self.run.id)
                raise self.fence.lose(stolen=True)
            self.claim = claims.refresh(self.claim)

    def _move(self) -> None:
        """Take what was received into the log."""
        journal().write(self.fence, Statement(sql=MOVE, params=(self.run.id, self.fence.ttl)))

    def _advance_once(self) -> None:
        try:
            definition = find_workflow(self.run.workflow, self.run.version)
        except WorkflowUnknown as error:
            self._block(Block(BlockCode.WORKFLOW_UNKNOWN, str(error)))
            return
        self._open_first_node()
        context = Context(
            run=self.run,
            workflow=definition,
            fence=self.fence,
            journal=journal(),
            history=self.claim.history,
        )
        if self.fence.phase == Phase.COMPENSATING:
            self._compensate(context)
        elif context.history.latest(EventType.GIVE_UP_REQUESTED):
            self._give_up(context)
        elif self.fence.cancel_requested:
            self._turn_back("cancelled", None)
        else:
            self._run_body(context)

    def _open_first_node(self) -> None:
        if self.claim.has_checkpoint:
            return
        journal().write(
            self.fence,
            self._checkpoint(0, json.loads(self.run.input), ["main"], []),
            written(self.fence, Fact(type=EventType.NODE_STARTED, node="main")),
            # Opening is no progress of the workflow: a body that kills its worker counts at once.
            Statement(sql=OPENED, params=(self.run.id,)),
        )

    def _checkpoint(
        self, super_step: int, state: JSON, following: list[str], completed: list[str]
    ) -> Statement:
        text = canonical.dumps(state)
        digest = canonical.digest("checkpoint", text)
        payload = canonical.dumps({"digest": digest, "next": following, "super_step": super_step})
        return Statement(
            sql=CHECKPOINT,
            params=(
                self.run.id,
                self.fence.ttl,
                super_step,
                text,
                digest,
                json.dumps(following),
                json.dumps(completed),
                self.run.schema_version,
                self.run.version,
                payload,
            ),
        )

    # The body -----------------------------------------------------------------------------------

    def _run_body(self, context: Context) -> None:
        """Re-enter the body: recorded calls return their records, the first new one goes on."""
        value: Any = None
        error: Exception | None = None
        with context.active():
            try:
                value = context.workflow.function(json.loads(self.run.input))
            except ControlFlow as control:
                self._note(context, control)
            except Exception as raised:
                error = raised
            except BaseException:
                # A group around a wait: the wait itself is known to the context.
                if not context.waits and context.stopped is None:
                    raise
            finally:
                context.come_to_rest()
        if context.fatal is not None:
            raise context.fatal
        self._conclude(context, value, error)

    @staticmethod
    def _note(context: Context, control: ControlFlow) -> None:
        if context.stopped is None and not isinstance(control, Suspend):
            context.stopped = control

    def _conclude(self, context: Context, value: Any, error: Exception | None) -> None:
        """What the body came to. A wait or a stop outranks whatever it returned or raised."""
        if context.stopped is not None:
            self._obey(context, context.stopped)
        elif context.waits:
            self._park(context.waits)
        elif (path := context.leftover()) and error is None:
            self._block(self._left_over(context, path))
        elif error is not None:
            self._turn_back("failed", error)
        else:
            self._succeed(context, value)

    def _obey(self, context: Context, control: ControlFlow) -> None:
        if isinstance(control, Abandon):
            raise LeaseLost
        if isinstance(control, Replay):
            raise control
        if isinstance(control, Block):
            self._block(control)
        elif isinstance(control, CancelNow):
            self._move()
            self._turn_back("cancelled", None)
        elif isinstance(control, Suspend):
            self._park([control])

    @staticmethod
    def _left_over(context: Context, path: str) -> Block:
        event = context.history.of(path)[0]
        return Block(
            BlockCode.NONDETERMINISM,
            f"The body ended without call {path} ({event.payload.get('name', event.type)!r}),"
            f" which the log has (event {event.seq}). The code or an unrecorded value changed.",
        )

    def _succeed(self, context: Context, value: Any) -> None:
        try:
            output = canonical.dumps(value, path="output")
        except InvalidValue as error:
            self._turn_back("failed", error)
            return
        self._end(
            RunStatus.SUCCEEDED,
            "{}",
            output=output,
            before=(
                written(self.fence, Fact(type=EventType.NODE_COMPLETED, node="main")),
                self._checkpoint(1, json.loads(output), [], ["main"]),
            ),
        )

    # Turning back ---------------------------------------------------------------------------------

    def _turn_back(self, reason: str, error: Exception | None) -> None:
        """From here on the run only undoes."""
        payload = canonical.dumps(
            {"error": failures.dump(error) if error else None, "reason": reason}
        )
        journal().write(
            self.fence,
            Statement(sql=COMPENSATE, params=(self.run.id,)),
            *self._closing_gate(),
            written(self.fence, Fact(type=EventType.COMPENSATION_STARTED, payload=payload)),
        )
        raise Replay  # with the new phase, from what is stored

    def _give_up(self, context: Context) -> None:
        """Not before the last call can no longer land: what was asked for is judged here again."""
        records_of_run = Statement(sql=records.OF_RUN, params=(self.run.id,))
        landing = [
            record["settle_until"]
            for record in journal().read(records_of_run)[0]
            if record["status"] == RecordStatus.UNKNOWN and record["settle_until"] > record["now"]
        ]
        if landing:
            wait = Wait(waiting_for=WaitingFor.RECONCILE, due=max(landing))
            self._park([Suspend(wait)])
        else:
            self._turn_back("given_up", None)

    def _closing_gate(self) -> tuple[Statement, ...]:
        guard = gate.current()
        return (guard.close(self.run.id),) if guard else ()

    def _compensate(self, context: Context) -> None:
        started = context.history.latest(EventType.COMPENSATION_STARTED)
        turned: JSON = started.payload if started else {"reason": "cancelled", "error": None}
        give_up = context.history.latest(EventType.GIVE_UP_REQUESTED) is not None
        report: compensation.Report | None = None
        with context.active() as scope:
            try:
                report = compensation.run(context, scope, give_up=give_up)
            except ControlFlow as control:
                self._note(context, control)
            finally:
                context.come_to_rest()
        if context.fatal is not None:
            raise context.fatal
        if context.stopped is not None:
            self._obey(context, context.stopped)
        elif context.waits or report is None:
            self._park(context.waits)
        elif turned["reason"] == "cancelled":
            self._end(RunStatus.CANCELLED, self._report(report))
        else:
            self._finish(
                RunStatus.FAILED, error=turned["error"], report=report, reason=turned["reason"]
            )

    @staticmethod
    def _report(report: compensation.Report, **more: JSON) -> str:
        return canonical.dumps({"left": report.left, "undone": report.undone, **more})

    # Letting go -----------------------------------------------------------------------------------

    def _finish(
        self,
        status: RunStatus,
        *,
        error: dict[str, JSON] | None,
        report: compensation.Report,
        reason: str,
    ) -> None:
        self._end(
            status,
            self._report(report, error=error),
            error=canonical.dumps(error) if error else None,
            code="GIVEN_UP" if reason == "given_up" else "FAILED",
            reason=str(error["message"]) if error else "An operator gave up.",
        )

    def _end(
        self,
        status: RunStatus,
        payload: str,
        *,
        output: str | None = None,
        error: str | None = None,
        code: str = "",
        reason: str = "",
        before: tuple[Statement, ...] = (),
    ) -> None:
        """End the run for good. Raises InboxWaiting when something was received meanwhile."""
        if self.fence.cancel_requested and self.fence.phase == Phase.FORWARD:
            raise Replay
        finishing = Statement(
            sql=FINISH,
            params=(
                self.run.id,
                self.fence.ttl,
                status.value,
                payload,
                output,
                error,
                code,
                reason,
            ),
        )
        rows = journal().write(self.fence, *before, finishing, *self._closing_gate())
        for (waiting,) in rows[len(before)]:
            inbox.poke(waiting)

    @staticmethod
    def _now() -> datetime:
        at: datetime = journal().read(Statement(sql="SELECT clock_timestamp() AS at"))[0][0]["at"]
        return at

    def _park(self, waits: list[Suspend]) -> None:
        """Let go until the earliest of what the branches wait for."""
        first = waits[0].wait
        due = [suspend.wait.due for suspend in waits if suspend.wait.due is not None]
        kinds = {suspend.wait.waiting_for for suspend in waits}
        kind = first.waiting_for if len(kinds) == 1 else WaitingFor.SEVERAL
        held = [suspend.wait.record for suspend in waits if suspend.wait.record is not None]
        record = held[0] if held else None
        if len(held) > 1:
            due.append(self._now() + SEVERAL_KEYS)
        wake_at: datetime | None = min(due) if due else None
        journal().write(
            self.fence,
            Statement(sql=PARK, params=(self.run.id, wake_at, kind.value, record)),
        )

    def _block(self, block: Block) -> None:
        journal().write(
            self.fence,
            Statement(
                sql=BLOCK,
                params=(
                    self.run.id,
                    self.fence.ttl,
                    block.code,
                    failure_class(block.code).value,
                    failures.clean(block.reason),
                ),
            ),
        )
