"""How much a page shows and counts, and where its next page begins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import DateTimeField, Func

PAGE = 50
# Counts stop here and say "more": nobody needs to know whether it is 40,311 or 40,312.
MOST_COUNTED = 1000

# The database's time while it reads a row, not when its transaction began.
NOW = Func(function="clock_timestamp", output_field=DateTimeField())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A count that stopped at a limit."""

    number: int
    more: bool

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.more else ''}"


def bounded(number: int) -> Bounded:
    """What is said of a number for which counting stopped after MOST_COUNTED + 1."""
    return Bounded(number=min(number, MOST_COUNTED), more=number > MOST_COUNTED)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a list that is sorted newest first: the row after which to go on."""

    at: datetime
    id: UUID

    def __str__(self) -> str:
        return f"{self.at.isoformat()}_{self.id}"

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """Return the position, or None for text that no page of ours has written."""
        at, _, id_ = text.partition("_")
        try:
            position = cls(datetime.fromisoformat(at), UUID(id_))
        except ValueError:
            return None
        return position if position.at.tzinfo else None
