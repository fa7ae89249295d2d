"""Words for times and people, the same on pages, in the API and in commands."""

from __future__ import annotations

from datetime import datetime, timedelta


def moment(at: datetime | None) -> str:
    """A time in UTC, as text."""
    return at.strftime("%d %b %Y %H:%M:%S UTC") if at else "an unknown time"


def duration(span: timedelta) -> str:
    """A span in its two largest units: "3 min 5 s", "2 d 4 h"."""
    seconds = int(abs(span.total_seconds()))
    parts = []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts) or "0 s"


def ago(at: datetime, now: datetime) -> str:
    return f"{duration(now - at)} ago" if at <= now else until(at, now)


def until(at: datetime, now: datetime) -> str:
    return f"in {duration(at - now)}" if at > now else ago(at, now)


def person(actor: str) -> str:
    """Who it was, in a reader's words: "user:ana" is ana."""
    kind, _, name = actor.partition(":")
    if kind == "user":
        return name
    return f"{name} ({kind})" if name else (actor or "the engine")
