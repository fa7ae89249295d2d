"""The one place that turns an error of the engine or of approvals into an answer for a person."""

from __future__ import annotations

from dataclasses import dataclass

from approvals.errors import ApprovalError
from durable import errors
from durable.errors import DurableError
from durable.wording import moment

CONFLICT = 409
NOT_VALID = 422
FORBIDDEN = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What is said when nothing was changed, and the status it goes with."""

    status: int
    title: str
    detail: str
    field: str = ""  # the field of the form to correct


_FORBIDDEN = frozenset({"NOT_PERMITTED", "SELF_APPROVAL", "REQUESTER_UNKNOWN"})
_NOT_VALID = frozenset({"INVALID_CHOICE", "INVALID_REASON", "INVALID_VALUE"})
_TITLES = {
    "ALREADY_DECIDED": "Somebody decided first",
    "TOO_LATE": "This request has expired",
    "WITHDRAWN": "This request was withdrawn",
    "CHANGED_MEANWHILE": "The action has changed",
    "UNREADABLE": "This request cannot be approved",
    "NOT_PERMITTED": "You may not decide this",
    "SELF_APPROVAL": "You may not decide this",
    "REQUESTER_UNKNOWN": "Nobody may approve this",
    "TOO_EARLY": "Too early to say that",
    "NOT_UNKNOWN": "The outcome is already known",
    "RUN_ENDED": "This run has ended",
    "NOT_BLOCKED": "This run is no longer stopped",
    "INTERRUPT_CLOSED": "This question is closed",
}


def refusal(error: DurableError | ApprovalError) -> Refusal:
    """Say what happened and that nothing was recorded."""
    if error.code in _NOT_VALID:
        return Refusal(
            status=NOT_VALID,
            title="There is a problem",
            detail=str(error),
            field=getattr(error, "field", ""),
        )
    detail = str(error)
    until = getattr(error, "until", None)
    if isinstance(error, errors.TooEarly) and until is not None:
        detail = f"The first call may still land until {moment(until)}."
    return Refusal(
        status=FORBIDDEN if error.code in _FORBIDDEN else CONFLICT,
        title=_TITLES.get(error.code, "Nothing was changed"),
        detail=detail,
    )
