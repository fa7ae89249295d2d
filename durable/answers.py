"""What a run's log already tells the body about an outside action."""

from __future__ import annotations

from dataclasses import dataclass

from durable import failures
from durable.canonical import JSON
from durable.history import StoredEvent
from durable.statuses import EventType


@dataclass(frozen=True, slots=True)
class Answer:
    """The stored result of an action, or the stored error that its body sees."""

    result: JSON = None
    error: dict[str, JSON] | None = None

    def value(self) -> JSON:
        """Return the result, or raise the error, rebuilt from what is stored."""
        if self.error is not None:
            raise failures.load(self.error)
        return self.result

    def parts(self) -> dict[str, JSON]:
        """The answer as a part of an event's payload."""
        return {"result": self.result} if self.error is None else {"error": self.error}


def recorded(events: list[StoredEvent]) -> Answer | None:
    """The answer in these events of one call; None while there is none."""
    return next(filter(None, map(_answer, reversed(events))), None)


def _answer(event: StoredEvent) -> Answer | None:
    payload = event.payload
    match event.type:
        case EventType.EXTERNAL_COMPLETED:
            return Answer(payload.get("result"), payload.get("error"))
        case EventType.EXTERNAL_RESOLVED if payload["outcome"] == "happened":
            return Answer(payload["result"])
        case EventType.EXTERNAL_FAILED if payload["final"]:
            return Answer(error=payload["error"])
        case EventType.EXTERNAL_REFUSED:
            return Answer(error=payload["error"])
    return None
