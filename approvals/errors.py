"""Every error of approvals. A class's docstring is its default message."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from approvals.models import Decision


class ApprovalError(Exception):
    """The request for approval could not be handled."""

    code: ClassVar[str] = "APPROVAL"
    field: ClassVar[str] = ""  # the form field to correct, if one is to blame

    def __init__(self, message: str = "") -> None:
        super().__init__(message or inspect.cleandoc(self.__doc__ or ""))


class ApprovalNotFound(ApprovalError):
    """There is no such request for approval."""

    code = "APPROVAL_NOT_FOUND"


class InvalidCursor(ApprovalError):
    """This page of the list does not exist; start again from the first one."""

    code = "INVALID_CURSOR"


# What the person sent -----------------------------------------------------------------------


class InvalidChoice(ApprovalError):
    """Choose to approve or to reject; nothing else decides."""

    code = "INVALID_CHOICE"
    field = "choice"


class InvalidReason(ApprovalError):
    """This reason cannot be stored."""

    code = "INVALID_REASON"
    field = "reason"


# Who the person is --------------------------------------------------------------------------


class NotPermitted(ApprovalError):
    """You may not decide about this. Ask somebody who may approve actions."""

    code = "NOT_PERMITTED"


class TokenMayNotDecide(ApprovalError):
    """A token cannot decide; a person has to, after logging in."""

    code = "TOKEN_MAY_NOT_DECIDE"


class SelfApproval(ApprovalError):
    """You asked for this action, so somebody else has to approve it."""

    code = "SELF_APPROVAL"


class RequesterUnknown(ApprovalError):
    """It is not known who asked for this, so nobody can approve it."""

    code = "REQUESTER_UNKNOWN"


# What became of the request -----------------------------------------------------------------


class TooLate(ApprovalError):
    """Nobody decided in time; the request has expired."""

    code = "TOO_LATE"


class Withdrawn(ApprovalError):
    """The run was cancelled or has ended; there is nothing left to decide."""

    code = "WITHDRAWN"


class ChangedMeanwhile(ApprovalError):
    """The action is not the one that you saw. Look at it again before you decide."""

    code = "CHANGED_MEANWHILE"


class AlreadyDecided(ApprovalError):
    """Somebody has already decided about this; that decision stands."""

    code = "ALREADY_DECIDED"

    def __init__(self, decision: Decision) -> None:
        when = f"{decision.at:%Y-%m-%d %H:%M:%S} UTC"
        what = {"approve": "approved", "reject": "rejected"}.get(decision.choice, decision.choice)
        super().__init__(f"{decision.actor} {what} this at {when}; that decision stands.")
        self.decision = decision


class Unreadable(ApprovalError):
    """What this request shows is not what was bound to it. It cannot be approved."""

    code = "UNREADABLE"


# What the developer declared ----------------------------------------------------------------


class InvalidPolicy(ApprovalError):
    """This policy cannot be used."""

    code = "INVALID_POLICY"
