"""Every status of approvals, and the moves each may make. The database repeats both."""

from __future__ import annotations

from enum import StrEnum


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    VOID = "void"  # the run was cancelled or ended before anyone decided
    SUPERSEDED = "superseded"  # the action changed; a new request took its place


APPROVAL_MOVES: dict[ApprovalStatus, frozenset[ApprovalStatus]] = {
    ApprovalStatus.PENDING: frozenset(
        {
            ApprovalStatus.APPROVED,
            ApprovalStatus.REJECTED,
            ApprovalStatus.EXPIRED,
            ApprovalStatus.VOID,
            ApprovalStatus.SUPERSEDED,
        }
    ),
    # An approval that was not used can still lapse, be voided by a cancel, or be superseded.
    ApprovalStatus.APPROVED: frozenset(
        {ApprovalStatus.EXPIRED, ApprovalStatus.VOID, ApprovalStatus.SUPERSEDED}
    ),
    ApprovalStatus.REJECTED: frozenset(),
    ApprovalStatus.EXPIRED: frozenset(),
    ApprovalStatus.VOID: frozenset(),
    ApprovalStatus.SUPERSEDED: frozenset(),
}


class Choice(StrEnum):
    """The only two words that decide."""

    APPROVE = "approve"
    REJECT = "reject"


class PermitStatus(StrEnum):
    RESERVED = "reserved"  # tied to a running or unknown action
    CONSUMED = "consumed"
    RELEASED = "released"  # the action did not happen; only the same record may reserve again


PERMIT_MOVES: dict[PermitStatus, frozenset[PermitStatus]] = {
    PermitStatus.RESERVED: frozenset({PermitStatus.CONSUMED, PermitStatus.RELEASED}),
    PermitStatus.RELEASED: frozenset({PermitStatus.RESERVED}),
    PermitStatus.CONSUMED: frozenset(),
}
