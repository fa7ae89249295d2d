"""Deciding about an approval: the only place that writes decisions and refusals.

Every door (page, API, command) calls `decide`. It locks the approval and nothing else, so that no
decision ever waits for a run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now

from approvals import clock, people, policies, rules
from approvals.errors import (
    AlreadyDecided,
    ApprovalError,
    ApprovalNotFound,
    ChangedMeanwhile,
    NotPermitted,
    TokenMayNotDecide,
    TooLate,
)
from approvals.models import Approval, Decision, Refusal
from approvals.statuses import ApprovalStatus, Choice
from durable import canonical, inbox
from durable.errors import InvalidValue
from durable.statuses import EventType

logger = logging.getLogger(__name__)

_STATUS = {Choice.APPROVE: ApprovalStatus.APPROVED, Choice.REJECT: ApprovalStatus.REJECTED}
# Overdue requests that one sweep ends; the next sweep goes on.
SWEEP_LIMIT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What a person sent, as it was sent."""

    person: User
    choice: str
    reason: str
    version: int
    digest: str
    surface: str
    by_token: bool


def decide(  # noqa: PLR0913 - what a person saw and said, each by its name
    approval_id: UUID,
    *,
    person: User,
    choice: str,
    reason: str,
    version: int,
    digest: str,
    surface: str,
    by_token: bool = False,
    tenant: str | None = None,
) -> Decision:
    """Record that a person approves or rejects exactly what they saw, once.

    `choice` is "approve" or "reject", which needs a `reason`; `version` and `digest` come from the
    page that the person saw; `surface` is "web" or "api"; `by_token` says that it was sent with a
    token of theirs, which never decides; `tenant` is settings.TENANT unless
    given. Commits by itself and refuses to run inside another transaction, because a refusal has
    to survive it. The same person repeating the same decision gets the recorded one.

    Raises ApprovalNotFound, TokenMayNotDecide, NotPermitted, InvalidChoice, InvalidReason,
    AlreadyDecided, TooLate, Withdrawn, ChangedMeanwhile, SelfApproval, RequesterUnknown,
    Unreadable; each is recorded as a Refusal where there is an approval to record it at.
    """
    vote = Vote(
        person=person,
        choice=choice,
        reason=reason,
        version=version,
        digest=digest,
        surface=surface,
        by_token=by_token,
    )
    with transaction.atomic(durable=True):
        outcome = _decide(approval_id, vote, settings.TENANT if tenant is None else tenant)
    # Raised only now: the refusal, and an expiry found on the way, are committed.
    if isinstance(outcome, ApprovalError):
        raise outcome
    return outcome


def _decide(approval_id: UUID, vote: Vote, tenant: str) -> Decision | ApprovalError:
    if not _lock(approval_id):
        return ApprovalNotFound()
    # Each check is a later statement than the lock: before it, a waiting one sees the past.
    approval = Approval.objects.get(id=approval_id)
    voter = people.stored(vote.person)
    outcome = _outcome(approval, vote, voter, tenant)
    if isinstance(outcome, TooLate):
        _expire(approval_id)
    if isinstance(outcome, ApprovalError):
        _record(outcome, approval, vote, voter)
    return outcome


def _lock(approval_id: UUID, *, skip_locked: bool = False) -> bool:
    locked = Approval.objects.select_for_update(no_key=True, skip_locked=skip_locked)
    return bool(locked.filter(id=approval_id).values_list("id"))


def _outcome(
    approval: Approval, vote: Vote, voter: User | None, tenant: str
) -> Decision | ApprovalError:
    if approval.tenant != tenant:
        return ApprovalNotFound()
    if vote.by_token:
        return TokenMayNotDecide()
    if voter is None or not people.may_decide(voter):
        return NotPermitted()
    malformed = rules.choice(vote.choice) or rules.reason(vote.reason, choice=vote.choice)
    if malformed:
        return malformed
    recorded = Decision.objects.filter(approval=approval).first()
    if recorded:
        return recorded if _repeats(vote, voter, recorded) else AlreadyDecided(recorded)
    at = clock.now()
    return _objection(approval, vote, voter, at) or _write(approval, vote, voter, at)


def _repeats(vote: Vote, voter: User, recorded: Decision) -> bool:
    """Whether this is the recorded decision once more: a double click, or a lost reply."""
    sent = (voter.pk, vote.choice, vote.version, vote.digest)
    return sent == (recorded.person_id, recorded.choice, recorded.version, recorded.digest)


def _objection(approval: Approval, vote: Vote, voter: User, at: datetime) -> ApprovalError | None:
    objection = rules.open_at(approval, at) or rules.seen(
        approval, version=vote.version, digest=vote.digest
    )
    if objection or vote.choice != Choice.APPROVE:
        return objection
    return rules.approvable(
        approval,
        actor=people.actor(voter),
        requester_known=people.is_known(approval.requested_by),
    )


def _write(approval: Approval, vote: Vote, voter: User, at: datetime) -> Decision:
    """Store the decision, the approval's move and the fact for the run, or nothing of it."""
    choice, actor = Choice(vote.choice), people.actor(voter)
    status = _STATUS[choice]
    decision = Decision.objects.create(
        approval=approval,
        version=approval.version,
        person=voter,
        actor=actor,
        choice=choice.value,
        reason=vote.reason.strip(),
        digest=vote.digest,
        surface=vote.surface,
        at=at,
    )
    valid_for = policies.read(approval.policy_snapshot).valid_for if status == "approved" else None
    moved = Approval.objects.filter(
        id=approval.id,
        status=ApprovalStatus.PENDING,
        version=vote.version,
        digest=vote.digest,
        decide_by__gt=at,
    ).update(status=status.value, decided_at=at, valid_until=at + valid_for if valid_for else None)
    if moved != 1:
        raise ChangedMeanwhile  # rolls the decision back
    inbox.put(
        approval.run_id,
        EventType.APPROVAL_DECIDED,
        actor=actor,
        task_key=approval.task_key,
        payload={
            "approval": str(approval.id),
            "operation_id": str(approval.operation_id),
            "status": status.value,
            "by": actor,
            "reason": decision.reason,
        },
    )
    return decision


def _record(refused: ApprovalError, approval: Approval, vote: Vote, voter: User | None) -> None:
    """Keep who tried what and why it did not count; a late rejection is still somebody's word."""
    Refusal.objects.create(
        approval=approval,
        person=voter,
        actor=people.actor(voter or vote.person, by_token=vote.by_token),
        choice=_storable(vote.choice, 100),
        reason=_storable(vote.reason, rules.LONGEST_REASON),
        code=refused.code,
        surface=vote.surface,
    )


def _storable(sent: object, longest: int) -> str:
    """Whatever was sent, as text that the database holds; odd characters as escapes."""
    text = sent if isinstance(sent, str) else ascii(sent)
    try:
        canonical.check_text(text, "text")
    except InvalidValue:
        text = ascii(text)
    return text[:longest]


def expire_overdue() -> int:
    """End what nobody decided in time; return how many. Doing it again does nothing.

    Cosmetic: nobody can decide or use an overdue approval, swept or not. It tells the waiting run.
    """
    overdue = Approval.objects.filter(status=ApprovalStatus.PENDING, decide_by__lte=Now()).order_by(
        "decide_by"
    )
    return sum(_sweep(id_) for id_ in list(overdue.values_list("id", flat=True)[:SWEEP_LIMIT]))


def _sweep(approval_id: UUID) -> bool:
    try:
        with transaction.atomic(durable=True):
            # Somebody who is deciding right now finds the expiry by themselves.
            return _lock(approval_id, skip_locked=True) and _expire(approval_id)
    except DatabaseError:
        # One row must not keep all the others from expiring; the next sweep tries it again.
        logger.exception("approval %s could not be expired", approval_id)
        return False


def _expire(approval_id: UUID) -> bool:
    """Mark it expired, and leave the fact for its run, if it is still overdue."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT approvals_expire_v1(%s)", [approval_id])
        run_id: UUID | None = cursor.fetchone()[0]
    if run_id is not None:
        transaction.on_commit(partial(inbox.poke, run_id), robust=True)
    return run_id is not None
