"""The one place that turns an error into an answer of the API: RFC 9457 problem details.

Every answer with a status from 400 on has `type`, `title`, `status`, `detail`, a stable `code`
and `errors`, a list of {path, reason}. Clients act on `code`; the sentences may change.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from approvals import errors as approvals
from approvals.errors import ApprovalError
from durable import errors as durable
from durable.errors import DurableError, InvalidValue
from durable.faults import Fault, InvalidRequest, Recorded

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MOST_SAID = 1000
MOST_SHOWN = 200

# What each domain error is to a client; one that is not named here is a fault of ours.
STATUSES: dict[type[Exception], int] = {
    durable.InvalidValue: 400,
    durable.ValueTooLarge: 413,
    durable.WorkflowUnknown: 400,
    durable.RunNotFound: 404,
    durable.InterruptNotFound: 404,
    durable.RecordNotFound: 404,
    durable.StartKeyConflict: 422,
    durable.RunEnded: 409,
    durable.InterruptClosed: 409,
    durable.NotUnknown: 409,
    durable.TooEarly: 409,
    durable.NotBlocked: 409,
    approvals.ApprovalNotFound: 404,
    approvals.InvalidCursor: 400,
    approvals.InvalidChoice: 400,
    approvals.InvalidReason: 400,
    approvals.NotPermitted: 403,
    approvals.SelfApproval: 403,
    approvals.RequesterUnknown: 403,
    approvals.TokenMayNotDecide: 403,
    approvals.TooLate: 409,
    approvals.Withdrawn: 409,
    approvals.ChangedMeanwhile: 409,
    approvals.AlreadyDecided: 409,
    approvals.Unreadable: 409,
}
TITLES = {
    400: "The request is not valid",
    401: "Log in first",
    403: "You may not do this",
    404: "There is no such thing",
    405: "This cannot be done here",
    406: "There is no such form of the answer",
    409: "This is no longer possible",
    411: "Say how long the request is",
    413: "The request is too large",
    415: "Send JSON",
    422: "This contradicts an earlier request",
    429: "Too many requests",
    500: "Something is broken here",
    503: "Try again in a moment",
}


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    faults: list[Fault] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Response:
    """The answer; `extra` adds members, such as what is on record."""
    shown = [{"path": _short(fault.path), "reason": _short(fault.reason)} for fault in faults or []]
    body = {
        "type": f"urn:standfast:problem:{code}",
        "title": TITLES.get(status, "The request was refused"),
        "status": status,
        "detail": _short(detail, MOST_SAID),
        "code": code,
        "errors": shown,
        **(extra or {}),
    }
    return Response(body, status=status, content_type=MEDIA_TYPE)


def _short(text: str, most: int = MOST_SHOWN) -> str:
    """A client's own words come back only in part: an answer is not an echo."""
    return text if len(text) <= most else f"{text[:most]}..."


def handler(error: Exception, context: Mapping[str, Any]) -> Response:
    """Answer for any error that a view of the API has raised."""
    recorded: Mapping[str, Any] = {}
    if isinstance(error, Recorded):
        recorded, error = {"recorded": error.recorded}, error.error
    if isinstance(error, (DurableError, ApprovalError)):
        return _refused(error, recorded)
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    if isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    if isinstance(error, SuspiciousOperation):
        error = InvalidRequest([Fault("", type(error).__name__)])
    if isinstance(error, exceptions.APIException):
        return _misread(error)
    return _broken(error)


def _refused(error: DurableError | ApprovalError, recorded: Mapping[str, Any]) -> Response:
    status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
    if status is None:
        return _broken(error)
    until = getattr(error, "until", None)
    answer = problem(
        status,
        "TOO_LARGE" if status == 413 else error.code,
        str(error),
        faults=_faults(error),
        extra={**recorded, **({"until": until.astimezone(UTC)} if until else {})},
    )
    if until:
        left = (until - datetime.now(UTC)).total_seconds()
        answer["Retry-After"] = max(1, math.ceil(left))
    return answer


def _faults(error: DurableError | ApprovalError) -> list[Fault]:
    """Which field to correct, if one is to blame."""
    if isinstance(error, InvalidValue):
        return [Fault(error.path, error.reason)]
    if isinstance(error, durable.WorkflowUnknown):
        return [Fault("workflow", str(error))]
    if isinstance(error, approvals.InvalidCursor):
        return [Fault("cursor", str(error))]
    field = getattr(error, "field", "")
    return [Fault(field, str(error))] if field else []


def _misread(error: exceptions.APIException) -> Response:
    faults = error.faults if isinstance(error, InvalidRequest) else []
    answer = problem(
        error.status_code, error.default_code.upper(), str(error.detail), faults=faults
    )
    if challenge := getattr(error, "auth_header", None):
        answer["WWW-Authenticate"] = challenge
    if wait := getattr(error, "wait", None):
        answer["Retry-After"] = math.ceil(wait)
    return answer


def _broken(error: Exception) -> Response:
    """No word of the error leaves: it may hold anything. The log has it."""
    logger.error("the API could not answer", exc_info=error)
    if isinstance(error, (OperationalError, InterfaceError)):
        detail = "The database does not answer. What was asked may or may not have been done."
        answer = problem(503, "UNAVAILABLE", detail)
        answer["Retry-After"] = 5
        return answer
    return problem(500, "BROKEN", "This is a fault of the server and was written to its log.")


def describe(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add to the description of every operation of the API how it refuses."""
    text = {"type": "string"}
    fault = {"type": "object", "properties": {"path": text, "reason": text}}
    result["components"]["schemas"]["Problem"] = {
        "type": "object",
        "description": "RFC 9457 problem details. Act on `code`; the sentences may change.",
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            "code": text,
            "errors": {"type": "array", "items": fault},
            "recorded": {"description": "What is on record instead, if that is why (409)."},
            "until": {"type": "string", "format": "date-time", "description": "TOO_EARLY."},
        },
        "required": ["type", "title", "status", "detail", "code", "errors"],
    }
    answer = {
        "description": "Refused; nothing was changed.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for path in result["paths"].values():
        for operation in path.values():
            operation["responses"]["default"] = answer
    return result
