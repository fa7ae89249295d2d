"""What may be wrong with a request to the API, apart from what the commands refuse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rest_framework.exceptions import APIException

MOST_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a request: where, and why."""

    path: str
    reason: str


class InvalidRequest(APIException):
    """The request cannot be understood as it is."""

    status_code = 400
    default_code = "INVALID_REQUEST"
    default_detail = "The request cannot be understood as it is; nothing was changed."

    def __init__(self, faults: Iterable[Fault]) -> None:
        super().__init__()
        self.faults = list(faults)[:MOST_FAULTS]


class Recorded(Exception):
    """Refused, because something else is on record: `error` says why, `recorded` says what."""

    def __init__(self, error: Exception, recorded: Mapping[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.recorded = recorded
