"""The sentence that a person must give for what they do to a run."""

from __future__ import annotations

from durable.canonical import check_text
from durable.errors import InvalidValue

MAX_LENGTH = 2000


def check(reason: str) -> None:
    """Raise InvalidValue, naming the field, when there is no usable reason."""
    if not isinstance(reason, str):
        raise InvalidValue("must be text", path="reason")
    check_text(reason, "reason")
    if not reason.strip():
        raise InvalidValue("must not be empty", path="reason")
    if len(reason) > MAX_LENGTH:
        raise InvalidValue(f"is longer than {MAX_LENGTH} characters", path="reason")
