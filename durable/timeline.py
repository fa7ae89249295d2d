"""A run's log as people read it: page by page, newest first, in five lanes.

Reads only, and never more than the page: a run of thirty thousand events stays quick, and so do
a hundred payloads of 100 KB, which are cut by the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, CharField, QuerySet
from django.db.models.expressions import RawSQL

from durable.models import Event
from durable.statuses import EventType

PAGE = 100
# A payload longer than this is shown in part; its own page shows all of it.
LONG_PAYLOAD = 4096  # bytes
LONG_MEMBER = 600  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event as a page shows it: a long payload in part."""

    run_id: UUID
    seq: int
    epoch: int
    at: datetime
    type: EventType | str
    node: str
    task_key: str
    actor: str
    payload: Mapping[str, Any]
    is_cut: bool

    @property
    def event_id(self) -> str:
        return f"evt_{self.run_id}_{self.seq}"

    def text(self, name: str) -> str:
        """A member of the payload as text; empty when it is missing."""
        value = self.payload.get(name)
        if value is None:
            return ""
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Lane(StrEnum):
    """What an event is about: five lanes of the timeline."""

    STEPS = "steps"
    EFFECTS = "effects"
    PEOPLE = "people"
    OWNERSHIP = "ownership"
    OTHER = "other"


_PREFIXES: tuple[tuple[str, Lane], ...] = (
    ("task.", Lane.STEPS),
    ("node.", Lane.STEPS),
    ("timer.", Lane.STEPS),
    ("external.", Lane.EFFECTS),
    ("compensation.", Lane.EFFECTS),
    ("record.", Lane.EFFECTS),
    ("approval.", Lane.PEOPLE),
    ("interrupt.", Lane.PEOPLE),
    ("cancel.", Lane.PEOPLE),
    ("resume.", Lane.PEOPLE),
    ("give_up.", Lane.PEOPLE),
    ("lease.", Lane.OWNERSHIP),
)


def lane_of(type_: str) -> Lane:
    """The lane an event type belongs to; Other for those that no prefix names."""
    for prefix, lane in _PREFIXES:
        if type_.startswith(prefix):
            return lane
    return Lane.OTHER


def _types(lane: Lane) -> list[str]:
    return [member.value for member in EventType if lane_of(member) == lane]


# A long payload, with each long member cut, so that it is still an object; done by the database,
# so that a hundred results of 100 KB do not travel.
_PREVIEW = """CASE WHEN octet_length(payload) <= %s THEN payload ELSE (
    SELECT coalesce(jsonb_object_agg(k, CASE WHEN length(v::text) <= %s THEN v
        ELSE to_jsonb(left(v #>> '{}', %s) || ' …') END), '{}')::text
    FROM jsonb_each(CASE WHEN left(payload, 1) = '{' THEN payload::jsonb ELSE '{}' END)
        AS member(k, v)) END"""
_IS_CUT = "octet_length(payload) > %s"


def rows_of(events: QuerySet[Event]) -> Iterable[EventRow]:
    """Fetch events as a page shows them. 1 statement."""
    rows = events.annotate(
        preview=RawSQL(  # noqa: S611
            _PREVIEW, [LONG_PAYLOAD, LONG_MEMBER, LONG_MEMBER], output_field=CharField()
        ),
        is_cut=RawSQL(  # noqa: S611
            _IS_CUT, [LONG_PAYLOAD], output_field=BooleanField()
        ),
    ).values_list(
        "run_id", "seq", "epoch", "at", "type", "node", "task_key", "actor", "preview", "is_cut"
    )
    for run_id, seq, epoch, at, type_, node, task_key, actor, preview, is_cut in rows:
        yield EventRow(
            run_id=run_id,
            seq=seq,
            epoch=epoch,
            at=at,
            type=type_,
            node=node,
            task_key=task_key,
            actor=actor,
            payload=_object(preview),
            is_cut=is_cut,
        )


def _object(text: str | None) -> dict[str, Any]:
    """Parse a stored object; what cannot be read is shown as it is, under "unreadable"."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {"unreadable": text}
    return value if isinstance(value, dict) else {"value": value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One page of a run's log, newest first."""

    events: list[EventRow]
    lane: Lane | None
    before: int | None  # go on before this number; None: this page reaches the first event
    is_newest: bool


def page(
    run_id: UUID, *, before: int | None = None, lane: Lane | None = None, size: int = PAGE
) -> Timeline:
    """Return one page of a run's log. 1 statement, and it reads no more than the page."""
    events = Event.objects.filter(run_id=run_id)
    if before is not None:
        events = events.filter(seq__lt=before)
    if lane is not None:
        events = events.filter(type__in=_types(lane))
    found = list(rows_of(events.order_by("-seq")[: size + 1]))
    return Timeline(
        events=found[:size],
        lane=lane,
        before=found[size - 1].seq if len(found) > size else None,
        is_newest=before is None,
    )


def error_text(event: EventRow | None) -> str:
    """The error an event tells of, as one line: its kind and its message."""
    if event is None:
        return ""
    error = event.payload.get("error")
    if isinstance(error, dict):
        kind = str(error.get("kind", "")).rpartition(".")[2]
        return ": ".join(part for part in (kind, str(error.get("message", ""))) if part)
    if event.type == EventType.RUN_BLOCKED:
        return ": ".join(part for part in (event.text("code"), event.text("reason")) if part)
    return event.text("error")
