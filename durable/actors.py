"""Who did something: "user:ana", "token:ana", "system:sweeper". Always said, never guessed."""

from __future__ import annotations

from durable.canonical import check_text
from durable.errors import InvalidValue

MAX_LENGTH = 500


def check(actor: str) -> None:
    """Raise InvalidValue when nobody, or nothing storable, is said to have acted."""
    if not isinstance(actor, str) or not actor.strip():
        raise InvalidValue("must say who acts", path="actor")
    check_text(actor, "actor")
    if len(actor) > MAX_LENGTH:
        raise InvalidValue(f"is longer than {MAX_LENGTH} characters", path="actor")
