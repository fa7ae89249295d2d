"""Exceptions that a body may catch, stored as JSON and rebuilt alike in the first run and later.

Invariant 12: a body that branches on `PaymentDeclined.code` takes the same branch after a crash,
because even the first run gets the rebuilt exception.
"""

from __future__ import annotations

import importlib
from typing import Any

from durable.canonical import JSON, UNSTORABLE, plain
from durable.errors import InvalidValue, StoredError

MAX_MESSAGE = 4000
MAX_SIZE = 64 * 1024


def clean(text: str) -> str:
    """Text of an outside error, made storable: NUL and lone surrogates become visible."""
    return UNSTORABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)[:MAX_MESSAGE]


def _storable(value: object) -> JSON:
    try:
        return plain(value)
    except InvalidValue:
        return clean(repr(value)[:200])


def dump(error: BaseException) -> dict[str, JSON]:
    """Return the error as JSON: its class, message, arguments and fields."""
    kind = type(error)
    fields = {name: _storable(value) for name, value in vars(error).items() if name[:1] != "_"}
    stored: dict[str, JSON] = {
        "kind": f"{kind.__module__}:{kind.__qualname__}",
        "message": clean(str(error)),
        "args": [_storable(argument) for argument in error.args],
        "fields": fields,
    }
    if len(repr(stored)) > MAX_SIZE:
        # What is too large to store beside the outcome must not cost the outcome.
        stored |= {"args": [stored["message"]], "fields": {}}
    return stored


def _class_named(kind: str) -> type[Exception] | None:
    module_name, _, qualname = kind.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError):
        return None
    # Only an exception is ever made from what is stored, and never by calling anything.
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def load(stored: dict[str, JSON]) -> Exception:
    """Rebuild what `dump` returned. A class that is gone becomes StoredError."""
    kind = _class_named(stored["kind"])
    if kind is None:
        return StoredError(stored["message"], kind=stored["kind"])
    error = kind.__new__(kind)
    error.args = tuple(stored["args"])
    vars(error).update(stored["fields"])
    return error
