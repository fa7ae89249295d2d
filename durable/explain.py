"""Why is this run not moving? One deterministic sentence, and what may be done about it.

Pure: takes a frozen snapshot, returns an Explanation. The same rule serves pages, API, commands
and alerts, so that all of them say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from durable.errors import BlockCode
from durable.snapshots import ReceivedItem, Snapshot
from durable.statuses import RunStatus, WaitingFor
from durable.wording import ago, duration, moment, person, until

Tone = Literal["calm", "working", "waiting", "trouble", "good", "ended"]
ActionName = Literal["decide", "answer", "resolve", "resume", "give_up", "cancel", "start_worker"]


# What is said ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Action:
    """Something a person may do, and what will follow."""

    name: ActionName
    label: str
    consequence: str
    target: UUID | None = None  # the approval, question or operation; None: the run itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The sentence, since when it holds, and what to do next, most useful first."""

    tone: Tone
    sentence: str
    since: datetime
    actions: tuple[Action, ...] = ()
    facts: tuple[str, ...] = ()


CANCEL = Action(
    "cancel",
    "Cancel this run",
    "Nothing new starts. What was done and can be undone is undone.",
)
RESUME = Action(
    "resume",
    "Try again from where it is",
    "A worker continues after the last recorded step. Finished steps are not repeated.",
)
GIVE_UP = Action(
    "give_up",
    "Give up",
    "The run ends as failed, after what can be undone was undone.",
)
START_WORKER = Action(
    "start_worker",
    "Start a worker",
    "Runs continue by themselves as soon as a worker is up. Nothing is lost meanwhile.",
)


def explain(seen: Snapshot) -> Explanation:
    """Say why a run is where it is. The first rule that applies speaks."""
    for rule in _RULES:
        said = rule(seen)
        if said is not None:
            return said
    return Explanation(
        tone="calm",
        sentence=f"Parked, and due at {moment(seen.wake_at)}."
        if seen.wake_at
        else "Parked. Nothing is due.",
        since=seen.since,
        actions=(CANCEL,),
    )


# The rules, in the order in which they are asked -------------------------------------------------


def _ended(seen: Snapshot) -> Explanation | None:
    ends: dict[RunStatus, tuple[Tone, str]] = {
        RunStatus.SUCCEEDED: ("good", "Finished successfully."),
        RunStatus.FAILED: ("trouble", "Failed, and will not be tried again."),
        RunStatus.CANCELLED: ("ended", "Cancelled. Nothing more will happen."),
    }
    if seen.status not in ends:
        return None
    tone, sentence = ends[seen.status]
    if seen.status == RunStatus.SUCCEEDED:
        return Explanation(tone=tone, sentence=sentence, since=seen.ended_at or seen.since)
    said = seen.reason or (seen.last_error if seen.status == RunStatus.FAILED else "")
    return Explanation(
        tone=tone,
        sentence=f"{sentence} Reason: {said}" if said else sentence,
        since=seen.ended_at or seen.since,
    )


def _blocked(seen: Snapshot) -> Explanation | None:
    if seen.status != RunStatus.BLOCKED:
        return None
    if seen.received and seen.received[-1].type in ("resume.requested", "give_up.requested"):
        return _received(seen)
    if seen.unknown and seen.code in (BlockCode.EFFECT_UNKNOWN, BlockCode.KEY_EXPIRED):
        return _not_sure(seen, lead="Stopped")
    if seen.code == BlockCode.EFFECT_UNKNOWN and seen.is_brief:
        return Explanation(
            tone="trouble",
            sentence="Stopped: not sure if an outside action happened.",
            since=seen.since,
        )
    sentence, actions = _BLOCKED.get(seen.code, ("Stopped: a person has to look at it.", (RESUME,)))
    facts = (f"Recorded reason: {seen.reason}",) if seen.reason else ()
    return Explanation(
        tone="trouble",
        sentence=f"{sentence} Code {seen.code or 'missing'}.",
        since=seen.since,
        actions=(*actions, CANCEL),
        facts=facts,
    )


_BLOCKED: dict[str, tuple[str, tuple[Action, ...]]] = {
    BlockCode.EFFECT_UNKNOWN: (
        "Stopped: it was not known whether an outside action had happened; now it is.",
        (RESUME, GIVE_UP),
    ),
    BlockCode.NONDETERMINISM: (
        "Stopped: the workflow's code no longer matches what this run has recorded.",
        (RESUME, GIVE_UP),
    ),
    BlockCode.WORKFLOW_UNKNOWN: (
        "Stopped: no worker has this version of the workflow.",
        (RESUME, GIVE_UP),
    ),
    BlockCode.KEY_EXPIRED: (
        "Stopped: the service no longer remembers the key of an outside action, "
        "so it could not tell a repetition from a new one.",
        (GIVE_UP,),
    ),
    BlockCode.STATE_UNREADABLE: (
        "Stopped: the saved state cannot be read by this version of the code.",
        (RESUME, GIVE_UP),
    ),
    BlockCode.APPROVAL_MISSING: (
        "Stopped: an action needs an approval that is missing or unreadable.",
        (RESUME, GIVE_UP),
    ),
    BlockCode.RETRIES_EXHAUSTED: (
        "Stopped: an action was sent as often as it may be, and the service never had it.",
        (RESUME, GIVE_UP),
    ),
    BlockCode.WORKER_LOST: (
        "Stopped: each worker that took this run died while working on it.",
        (RESUME, GIVE_UP),
    ),
}


def _not_sure(seen: Snapshot, *, lead: str) -> Explanation:
    """An outside action may or may not have happened; everything waits for the truth."""
    effect = seen.unknown[0]
    sentence = f"{lead}: not sure if “{effect.operation}” happened (key {effect.key})."
    can_land = effect.settle_until is not None and effect.settle_until > seen.now
    if can_land and effect.settle_until is not None:
        sentence += (
            f" The first call may still land until {moment(effect.settle_until)}"
            f" ({until(effect.settle_until, seen.now)})."
        )
    facts = []
    if seen.wake_at and seen.waiting_for == WaitingFor.RECONCILE:
        facts.append(f"The service is asked again at {moment(seen.wake_at)}.")
    if len(seen.unknown) > 1:
        facts.append(f"{len(seen.unknown) - 1} more outside actions are not known either.")
    resolve = Action(
        "resolve",
        "Find out and record what happened",
        "The run continues with what you record. Nothing is sent twice under the same key.",
        effect.operation_id,
    )
    actions: tuple[Action, ...] = (resolve,)
    if seen.status == RunStatus.BLOCKED and not can_land:
        actions = (resolve, GIVE_UP)
    if not seen.cancel_requested:
        actions = (*actions, CANCEL)
    return Explanation(
        tone="trouble" if seen.status == RunStatus.BLOCKED else "waiting",
        sentence=sentence,
        since=effect.since or seen.since,
        actions=actions,
        facts=tuple(facts),
    )


def _expired_lease(seen: Snapshot) -> Explanation | None:
    if not seen.lease_expired:
        return None
    ended = seen.lease_expires_at or seen.since
    sentence = (
        f"Its worker stopped {ago(ended, seen.now)} without saying so, "
        "and no other has taken over yet."
    )
    actions: tuple[Action, ...] = (CANCEL,)
    if seen.nobody_sweeps:
        sentence += f" {_no_sweep(seen)}"
        actions = (START_WORKER, CANCEL)
    return Explanation(
        tone="trouble",
        sentence=sentence,
        since=ended,
        actions=actions,
        facts=(f"Worker {seen.worker or 'unnamed'}, lease number {seen.epoch}.",),
    )


def _cancelling(seen: Snapshot) -> Explanation | None:
    if not seen.cancel_requested:
        return None
    if seen.unknown:
        return _not_sure(seen, lead="Cancelling, and held up")
    sentence = "Cancelling: nothing new starts, and what was done is being undone."
    return _needs_worker(seen, sentence) or Explanation(
        tone="waiting", sentence=sentence, since=seen.since
    )


_TAKEN: dict[str, str] = {
    "approval.decided": "The decision of {actor} is recorded",
    "interrupt.answered": "The answer of {actor} is recorded",
    "external.resolved": "What {actor} found out is recorded",
    "external.reconcile_requested": "{actor} asked for another look at the outside service",
    "cancel.requested": "{actor} asked to cancel",
    "resume.requested": "{actor} asked to try again",
    "give_up.requested": "{actor} decided to give up",
}


def _taken(item: ReceivedItem) -> str:
    said, actor = _TAKEN.get(item.type, "News from {actor} is recorded"), person(item.actor)
    return f"{said.replace('{actor}', actor)}; a worker has not taken it yet."


def _received(seen: Snapshot) -> Explanation | None:
    if not seen.received:
        return None
    item = seen.received[-1]
    sentence = _taken(item)
    if seen.nobody_sweeps:
        return Explanation(
            tone="trouble",
            sentence=f"{sentence} {_no_sweep(seen)}",
            since=item.received_at,
            actions=(START_WORKER, CANCEL),
        )
    return Explanation(tone="waiting", sentence=sentence, since=item.received_at, actions=(CANCEL,))


def _working(seen: Snapshot) -> Explanation | None:
    if seen.status != RunStatus.RUNNING or not seen.lease_held:
        return None
    doing = f" on {seen.activity}" if seen.activity else ""
    return Explanation(
        tone="working",
        sentence=f"A worker is busy{doing}.",
        since=seen.since,
        actions=(CANCEL,),
        facts=(
            f"Worker {seen.worker or 'unnamed'}, lease number {seen.epoch}.",
            *(_taken(item) for item in seen.received),
        ),
    )


def _pending(seen: Snapshot) -> Explanation | None:
    if seen.status != RunStatus.PENDING:
        return None
    if seen.wake_at is not None and seen.wake_at > seen.now:
        return Explanation(
            tone="calm",
            sentence=f"Starts at {moment(seen.wake_at)} ({until(seen.wake_at, seen.now)}).",
            since=seen.created_at,
            actions=(CANCEL,),
        )
    sentence = "Not started: no worker has taken it yet."
    return _needs_worker(seen, sentence) or Explanation(
        tone="calm", sentence=sentence, since=seen.wake_at or seen.created_at, actions=(CANCEL,)
    )


def _due(seen: Snapshot) -> Explanation | None:
    """It may go on, and nobody has taken it."""
    if seen.wake_at is None or seen.wake_at > seen.now or seen.lease_held:
        return None
    waited = duration(seen.now - seen.wake_at)
    sentence = f"Ready to continue for {waited}; no worker has taken it yet."
    return _needs_worker(seen, sentence) or Explanation(
        tone="waiting", sentence=sentence, since=seen.wake_at, actions=(CANCEL,)
    )


def _for_approval(seen: Snapshot) -> Explanation | None:
    if not seen.approvals:
        return None
    first = min(seen.approvals, key=lambda approval: approval.decide_by)
    who = first.asked or "an approver"
    if first.decide_by <= seen.now:
        sentence = (
            f"Nobody decided on “{first.title}” before {moment(first.decide_by)}: "
            "it is not approved, and a worker has not recorded that yet."
        )
        return _needs_worker(seen, sentence) or Explanation(
            tone="waiting", sentence=sentence, since=first.decide_by, actions=(CANCEL,)
        )
    sentence = (
        f"Waiting for {who} to approve “{first.title}”, until {moment(first.decide_by)}"
        f" ({until(first.decide_by, seen.now)})."
    )
    decide = Action(
        "decide",
        "Open the request",
        "Approve exactly this or reject it. Without a decision in time it is not done.",
        first.id,
    )
    more = len(seen.approvals) - 1
    return Explanation(
        tone="waiting",
        sentence=sentence,
        since=seen.since,
        actions=(decide, CANCEL),
        facts=(f"{more} more requests are open.",) if more else (),
    )


def _for_answer(seen: Snapshot) -> Explanation | None:
    if not seen.questions:
        return None
    first = seen.questions[0]
    sentence = f"Waiting for an answer: “{first.question}”"
    if first.expires_at is not None:
        sentence += f", until {moment(first.expires_at)} ({until(first.expires_at, seen.now)})"
    answer = Action(
        "answer", "Answer the question", "The run continues with your answer.", first.id
    )
    return Explanation(
        tone="waiting", sentence=f"{sentence}.", since=seen.since, actions=(answer, CANCEL)
    )


def _for_outside(seen: Snapshot) -> Explanation | None:
    return _not_sure(seen, lead="Waiting") if seen.unknown else None


def _for_people(seen: Snapshot) -> Explanation | None:
    """What a list can say without having read whom or what the run waits for."""
    sentences = {
        WaitingFor.APPROVAL: "Waiting for an approver to decide.",
        WaitingFor.ANSWER: "Waiting for an answer to a question.",
        WaitingFor.SEVERAL: "Waiting for several things at once.",
    }
    if not seen.is_brief or seen.waiting_for not in sentences:
        return None
    return Explanation(
        tone="waiting", sentence=sentences[seen.waiting_for], since=seen.since, actions=(CANCEL,)
    )


def _for_time(seen: Snapshot) -> Explanation | None:
    if seen.wake_at is None or seen.wake_at <= seen.now:
        return None
    when = f"{moment(seen.wake_at)} ({until(seen.wake_at, seen.now)})"
    sentences = {
        WaitingFor.TIMER: f"Sleeping until {when}, as the workflow says.",
        WaitingFor.RETRY: f"A step failed and is tried again at {when}.",
        WaitingFor.RECORD: "Another run is doing the same outside action; "
        f"this one looks again at {when}.",
        WaitingFor.RECONCILE: f"The outside service is asked what happened at {when}.",
    }
    if seen.waiting_for not in sentences:
        return None
    facts = (f"Last error: {seen.last_error}",) if seen.last_error else ()
    return Explanation(
        tone="waiting",
        sentence=sentences[seen.waiting_for],
        since=seen.since,
        actions=(CANCEL,),
        facts=facts,
    )


def _for_another_run(seen: Snapshot) -> Explanation | None:
    if seen.waiting_for != WaitingFor.RECORD:
        return None
    return Explanation(
        tone="waiting",
        sentence="Another run is doing the same outside action; this one continues when it ended.",
        since=seen.since,
        actions=(CANCEL,),
    )


def _unclaimed(seen: Snapshot) -> Explanation | None:
    """Running on paper, with no owner and nothing due: between two claims, or forgotten."""
    if seen.status != RunStatus.RUNNING:
        return None
    sentence = "Started, and no worker holds it now."
    return _needs_worker(seen, sentence) or Explanation(
        tone="waiting", sentence=sentence, since=seen.since, actions=(CANCEL,)
    )


_RULES: tuple[Callable[[Snapshot], Explanation | None], ...] = (
    _ended,
    _blocked,
    _expired_lease,
    _cancelling,
    _working,
    _received,
    _pending,
    _due,
    _for_approval,
    _for_answer,
    _for_outside,
    _for_people,
    _for_time,
    _for_another_run,
    _unclaimed,
)


def _needs_worker(seen: Snapshot, sentence: str) -> Explanation | None:
    """The same sentence, and that no worker is up, when none is."""
    if not seen.nobody_sweeps:
        return None
    return Explanation(
        tone="trouble",
        sentence=f"{sentence} {_no_sweep(seen)}",
        since=seen.since,
        actions=(START_WORKER,) if seen.cancel_requested else (START_WORKER, CANCEL),
    )


def _no_sweep(seen: Snapshot) -> str:
    if seen.swept_at is None:
        return "No worker has ever looked for work; is one running?"
    idle = duration(seen.now - seen.swept_at)
    return f"No worker has looked for work for {idle}; is one running?"
