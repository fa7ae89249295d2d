"""How a service is told to misbehave, and which switch speaks for a request. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from examples.sandbox import catalogue
from examples.sandbox.catalogue import Service
from examples.strict_json import Json

LOOKUP = "lookup"
LONGEST_WAIT = 3600.0
FIELDS = {"service", "operation", "match", "behaviour", "seconds", "retry_after", "times"}


class Behaviour(StrEnum):
    """What a service does with a request."""

    OK = "ok"
    APPLY_THEN_SILENCE = "apply-then-silence"
    SILENCE = "silence"
    RATE_LIMIT = "rate-limit"
    ERROR_BEFORE = "error-before"
    ERROR_AFTER = "error-after"
    SLOW = "slow"
    LATE = "late"
    DECLINE = "decline"
    ERROR = "error"
    NOT_FOUND = "not-found"


MEANING = {
    Behaviour.OK: "do it and answer",
    Behaviour.APPLY_THEN_SILENCE: "do it, never answer",
    Behaviour.SILENCE: "do nothing, never answer",
    Behaviour.RATE_LIMIT: "refuse with 429 and Retry-After",
    Behaviour.ERROR_BEFORE: "answer 500, do nothing",
    Behaviour.ERROR_AFTER: "do it, answer 500",
    Behaviour.SLOW: "wait, then do it and answer",
    Behaviour.LATE: "never answer, do it after a while",
    Behaviour.DECLINE: "decline the payment with 402",
    Behaviour.ERROR: "answer look-ups with 500",
    Behaviour.NOT_FOUND: "say not found, whatever happened",
}

ON_LOOKUP = (Behaviour.OK, Behaviour.ERROR, Behaviour.SILENCE, Behaviour.NOT_FOUND)
ON_REQUEST = tuple(
    behaviour
    for behaviour in Behaviour
    if behaviour not in (Behaviour.ERROR, Behaviour.NOT_FOUND, Behaviour.DECLINE)
)
WAITING = (Behaviour.SLOW, Behaviour.LATE)


class BadSwitch(ValueError):
    """The switch asks for something the sandbox cannot do. The message says what."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One rule: which requests, and what happens to them.

    An empty `operation` means all but look-ups; an empty `match` means every key; `times` None
    means until it is changed. `seconds` are seconds; `retry_after` is the raw header.
    """

    service: Service
    operation: str = ""
    match: str = ""
    behaviour: Behaviour = Behaviour.OK
    seconds: float = 0.0
    retry_after: str = ""
    times: int | None = None
    number: int = 0

    @property
    def is_default(self) -> bool:
        """Whether this says only what happens anyway."""
        return self.behaviour is Behaviour.OK and not self.operation and not self.match

    def covers(self, service: Service, operation: str, key: str) -> bool:
        """Whether this switch speaks for a request; look-ups answer only to their own switches."""
        if self.service is not service or self.match not in key:
            return False
        return self.operation == operation or (not self.operation and operation != LOOKUP)

    def as_json(self) -> dict[str, Json]:
        """The switch as `GET /switches` shows it."""
        return {
            "number": self.number,
            "service": self.service.value,
            "operation": self.operation,
            "match": self.match,
            "behaviour": self.behaviour.value,
            "seconds": self.seconds,
            "retry_after": self.retry_after,
            "times": self.times,
        }


def choose(switches: Iterable[Switch], service: Service, operation: str, key: str) -> Switch:
    """The narrowest switch that covers the request; among equals, the newest."""
    covering = [switch for switch in switches if switch.covers(service, operation, key)]
    if not covering:
        return Switch(service=service)
    return max(covering, key=_rank)


def _rank(switch: Switch) -> tuple[bool, bool, int]:
    return (switch.match != "", switch.operation != "", switch.number)


def read(wish: Json) -> Switch:
    """Turn a posted JSON object into a switch; raise BadSwitch saying which field is wrong."""
    if not isinstance(wish, dict):
        raise BadSwitch("a switch is a JSON object")
    unknown = sorted(wish.keys() - FIELDS)
    if unknown:
        raise BadSwitch(f"{unknown[0]} is not a field of a switch; use {', '.join(sorted(FIELDS))}")
    service = _service(wish.get("service"))
    operation = _operation(service, wish.get("operation"))
    behaviour = _behaviour(service, operation, wish.get("behaviour"))
    return Switch(
        service=service,
        operation=operation,
        match=_text("match", wish.get("match")),
        behaviour=behaviour,
        seconds=_seconds(behaviour, wish.get("seconds")),
        retry_after=_text("retry_after", wish.get("retry_after")),
        times=_times(wish.get("times")),
    )


def allowed(service: Service, operation: str) -> tuple[Behaviour, ...]:
    """The behaviours that an operation of a service can be given."""
    if operation == LOOKUP:
        return ON_LOOKUP
    return (*ON_REQUEST, Behaviour.DECLINE) if service is Service.PAYMENTS else ON_REQUEST


def _service(value: Json) -> Service:
    try:
        return Service(value)
    except ValueError:
        raise BadSwitch(f"service must be one of {', '.join(Service)}") from None


def _operation(service: Service, value: Json) -> str:
    known = (*catalogue.names(service), LOOKUP)
    if value in (None, ""):
        return ""
    if value not in known:
        raise BadSwitch(f"operation of {service} must be one of {', '.join(known)}")
    return str(value)


def _behaviour(service: Service, operation: str, value: Json) -> Behaviour:
    choices = allowed(service, operation)
    if value not in choices:
        subject = f"{service} {operation}".strip()
        raise BadSwitch(f"behaviour of {subject} must be one of {', '.join(choices)}")
    return Behaviour(value)


def _text(field: str, value: Json) -> str:
    if value is None:
        return ""
    text = str(value) if isinstance(value, int | float) else value
    if not isinstance(text, str) or len(text) > 200 or not (text.isascii() and text.isprintable()):
        raise BadSwitch(f"{field} must be at most 200 printable ASCII characters")
    return text


def _seconds(behaviour: Behaviour, value: Json) -> float:
    if value is None:
        if behaviour in WAITING:
            raise BadSwitch(f"{behaviour} needs seconds")
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadSwitch("seconds must be a number")
    if not 0 <= value <= LONGEST_WAIT:
        raise BadSwitch(f"seconds must lie between 0 and {LONGEST_WAIT:.0f}")
    return float(value)


def _times(value: Json) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise BadSwitch("times must be a whole number between 1 and 1000000")
    return value
