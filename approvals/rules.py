"""What stands between a person and a decision. Pure: decided from values, applied elsewhere.

Each rule returns the error that says why not, or None. `decisions` raises it, a page shows it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from approvals import binding, policies
from approvals.errors import (
    ApprovalError,
    ChangedMeanwhile,
    InvalidChoice,
    InvalidPolicy,
    InvalidReason,
    RequesterUnknown,
    SelfApproval,
    TooLate,
    Unreadable,
    Withdrawn,
)
from approvals.statuses import ApprovalStatus, Choice
from durable import canonical
from durable.errors import InvalidValue

if TYPE_CHECKING:
    from approvals.models import Approval

LONGEST_REASON = 2000


def choice(value: object) -> InvalidChoice | None:
    """Only the two exact words decide: not "APPROVE ", "yes", 1 or nothing."""
    return None if isinstance(value, str) and value in set(Choice) else InvalidChoice()


def reason(value: object, *, choice: str) -> InvalidReason | None:
    """A reason is storable text; a rejection needs one, because somebody has to act on it."""
    if not isinstance(value, str):
        return InvalidReason("Write the reason as text.")
    if choice == Choice.REJECT and not value.strip():
        return InvalidReason("Say why you reject this.")
    if len(value) > LONGEST_REASON:
        return InvalidReason(f"Keep the reason below {LONGEST_REASON} characters.")
    try:
        canonical.check_text(value, "reason")
    except InvalidValue as error:
        return InvalidReason(f"The reason {error.reason}, which cannot be stored.")
    return None


def open_at(approval: Approval, at: datetime) -> ApprovalError | None:
    """Nobody decides about what is no longer pending at this database time."""
    if approval.status == ApprovalStatus.PENDING:
        return TooLate() if approval.decide_by <= at else None
    closed: dict[str, type[ApprovalError]] = {
        ApprovalStatus.EXPIRED: TooLate,
        ApprovalStatus.VOID: Withdrawn,
        ApprovalStatus.SUPERSEDED: ChangedMeanwhile,
    }
    return closed.get(approval.status, Unreadable)()


def seen(approval: Approval, *, version: int, digest: str) -> ChangedMeanwhile | None:
    """A decision is about the version and digest that the person's page showed."""
    same = approval.version == version and approval.digest == digest
    return None if same else ChangedMeanwhile()


def same_person(one: str, other: str) -> bool:
    """Whether two recorded names are one person's: a token acts for the one it belongs to."""
    return _owner(one) == _owner(other)


def _owner(actor: str) -> str:
    kind, colon, name = actor.partition(":")
    return f"user:{name}" if colon and kind == "token" else actor


def approvable(
    approval: Approval, *, actor: str, requester_known: bool
) -> SelfApproval | RequesterUnknown | Unreadable | None:
    """Two pairs of eyes, and only on what is bound. Anybody may reject."""
    try:
        terms = policies.read(approval.policy_snapshot)
    except InvalidPolicy:
        return Unreadable()
    if terms.no_self_approval and same_person(approval.requested_by, actor):
        return SelfApproval()
    if terms.no_self_approval and not requester_known:
        return RequesterUnknown()
    return None if binding.of_approval(approval).digest == approval.digest else Unreadable()
