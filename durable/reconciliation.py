"""Finding out whether an action whose outcome is unknown has happened (invariant 5).

The effect's `reconcile` is asked, with backoff and up to a budget; then a person is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn

from durable import canonical, conf
from durable.answers import Answer
from durable.canonical import JSON
from durable.context import Scope, inside
from durable.control import Block, ControlFlow, Replay, Suspend, Wait
from durable.errors import BlockCode
from durable.gate import Statement
from durable.journal import RowChanged
from durable.proposals import Proposal
from durable.records import Record
from durable.registry import accepted
from durable.statuses import EventType, RecordStatus, WaitingFor

logger = logging.getLogger(__name__)

# Seconds between two questions, doubled each time, and the most.
PAUSE = 2.0
LONGEST_PAUSE = 600.0


@dataclass(frozen=True, kw_only=True)
class Happened:
    """What `reconcile` returns when the outside service knows the action."""

    result: JSON
    resource: str = ""


class NotFound:
    """What `reconcile` returns when the outside service has no such action."""


class StillUnknown:
    """What `reconcile` returns when the outside service could not say."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the outside service said: happened, not_found or still_unknown."""

    outcome: str
    answer: Answer = field(default_factory=Answer)
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class SendAgain:
    """Not found, yet the first call may still land, at a service that does a key only once.

    `before` belongs into the transaction that sends it again: on its own it would say that the
    action failed, and a cancel in between would believe it.
    """

    before: Statement


Follow = Callable[[RecordStatus], tuple[Statement, ...]]


def resolve(
    scope: Scope, proposal: Proposal, record: Record, *, call: Any, early: bool, follow: Follow
) -> Answer | SendAgain | None:
    """Return the answer of an unknown action; None when it did not happen and may start again.

    Parks until the next question, or blocks for a person. `early` allows SendAgain; `follow`
    gives what moves with the record in the same transaction; `call` is handed to the effect's
    reconcile.
    """
    context = scope.context
    events = context.history.of(proposal.path)
    asked = [event for event in events if event.type == EventType.EXTERNAL_RECONCILED]
    wanted = bool(events) and events[-1].type == EventType.EXTERNAL_RECONCILE_REQUESTED
    if asked and "until" in asked[-1].payload and not wanted:
        until = datetime.fromisoformat(asked[-1].payload["until"])
        if until > record["now"]:
            _wait(scope, until)
    if proposal.effect.reconcile is None:
        _ask_person(proposal, "The service cannot be asked whether it happened.")
    said = ask(proposal, call)
    until_next = _next_question(record, said, len(asked))
    if said.outcome == "not_found" and until_next is not None and early:
        payload = proposal.payload(outcome=said.outcome)
        return SendAgain(proposal.reconciling(said.outcome, said.answer, None, payload))
    verdict = _store(proposal, said, until_next, follow)
    if verdict == RecordStatus.SUCCEEDED:
        return said.answer
    if verdict == RecordStatus.FAILED:
        return None
    unsure = sum(event.payload["outcome"] == "still_unknown" for event in asked)
    if said.outcome == "still_unknown" and (wanted or unsure + 1 >= conf.reconcile_attempts()):
        _ask_person(proposal, "The service could not say whether it happened.")
    _wait(scope, until_next)


def ask(proposal: Proposal, call: Any) -> Said:
    """Ask `reconcile` once; whatever goes wrong there means that we still do not know."""
    effect = proposal.effect
    if effect.reconcile is None:
        return Said("still_unknown")
    try:
        with inside(f"reconcile of {effect.name}", proposal.context.fence):
            said = effect.reconcile(call, **accepted(effect.reconcile, proposal.parameters))
        if isinstance(said, Happened):
            result = json.loads(canonical.dumps_result(said.result, path="reconcile result"))
            canonical.check_text(said.resource, "reconcile resource")
            return Said("happened", Answer(result), said.resource or None)
        if said is NotFound or isinstance(said, NotFound):
            return Said("not_found")
    except (ControlFlow, KeyboardInterrupt, SystemExit):
        raise
    except Exception:
        logger.warning("reconcile of %s failed", effect.name, exc_info=True)
    return Said("still_unknown")


def _next_question(record: Record, said: Said, asked: int) -> datetime | None:
    """When to ask again; None when what was said settles it."""
    now: datetime = record["now"]
    settled: datetime = record["settle_until"]
    if said.outcome == "happened":
        return None
    if said.outcome == "not_found":
        return settled if settled > now else None  # before that the first call may yet land
    return now + timedelta(seconds=min(PAUSE * 2 ** min(asked, 20), LONGEST_PAUSE))


def _store(proposal: Proposal, said: Said, until: datetime | None, follow: Follow) -> RecordStatus:
    context = proposal.context
    verdict = RecordStatus.UNKNOWN
    if until is None:
        verdict = RecordStatus.SUCCEEDED if said.outcome == "happened" else RecordStatus.FAILED
    parts: dict[str, JSON] = {"until": until.isoformat()} if until is not None else {}
    payload = proposal.payload(outcome=said.outcome, **parts)
    outcome = said.outcome if until is None else "unknown"
    try:
        context.write(
            proposal.reconciling(outcome, said.answer, said.resource, payload), *follow(verdict)
        )
    except RowChanged:
        context.stop(Replay())  # a person resolved it meanwhile: go on from what they said
    context.remember(proposal.fact(EventType.EXTERNAL_RECONCILED, payload))
    if verdict == RecordStatus.SUCCEEDED:
        # Turning back, the run goes on from this very history: what was found must be undone too.
        answered = proposal.answered(said.answer, said.resource)
        context.remember(proposal.fact(EventType.EXTERNAL_COMPLETED, answered))
    return verdict


def _ask_person(proposal: Proposal, why: str) -> NoReturn:
    name = proposal.effect.name
    proposal.context.stop(
        Block(
            BlockCode.EFFECT_UNKNOWN,
            f"It is not known whether {name!r} with the key {proposal.key!r} happened. {why}",
        )
    )


def _wait(scope: Scope, until: datetime | None) -> NoReturn:
    scope.context.suspend(scope, Suspend(Wait(waiting_for=WaitingFor.RECONCILE, due=until)))
