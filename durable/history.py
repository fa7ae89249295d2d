"""A run's log as its executor reads it: which calls have answers, and what else was asked."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from durable.canonical import JSON
from durable.statuses import EventType

RUN_LEVEL = frozenset(
    {
        EventType.CANCEL_REQUESTED,
        EventType.GIVE_UP_REQUESTED,
        EventType.COMPENSATION_STARTED,
        EventType.RESUME_REQUESTED,
    }
)


@dataclass(frozen=True)
class StoredEvent:
    """One event of the log. Its payload is parsed when somebody looks."""

    seq: int
    type: EventType
    task_key: str
    actor: str
    at: datetime
    text: str

    @cached_property
    def payload(self) -> dict[str, JSON]:
        value: dict[str, JSON] = json.loads(self.text)
        return value


class History:
    """The events of the run, by call path."""

    def __init__(self) -> None:
        self.calls: dict[str, list[StoredEvent]] = defaultdict(list)
        self.run_level: list[StoredEvent] = []
        self.in_order: list[StoredEvent] = []

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in rows of durable_event, in order of seq."""
        for row in rows:
            event = StoredEvent(
                seq=row["seq"],
                type=EventType(row["type"]),
                task_key=row["task_key"],
                actor=row["actor"],
                at=row["at"],
                text=row["payload"],
            )
            if event.task_key:
                self.calls[event.task_key].append(event)
                self.in_order.append(event)
            elif event.type in RUN_LEVEL:
                self.run_level.append(event)

    def of(self, path: str) -> list[StoredEvent]:
        """The events of one call; empty when it was never made."""
        return self.calls.get(path, [])

    def latest(self, *types: EventType) -> StoredEvent | None:
        """The newest event about the whole run of one of these types."""
        return next((event for event in reversed(self.run_level) if event.type in types), None)
