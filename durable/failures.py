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
MAX_DEPTH = 32  # of a field: it is stored inside an event, which has a limit of its own


def clean(text: str) -> str:
    """Text of an outside error, made storable: NUL and lone surrogates become visible."""
    return UNSTORABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)[:MAX_MESSAGE]


def _storable(value: object) -> JSON:
    try:
        return plain(value, max_depth=MAX_DEPTH)
    except InvalidValue:
        return clean(_represented(value)[:200])


def _represented(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _said(error: BaseException) -> str:
    """The words of an error. Its own code may fail, which must not cost the outcome."""
    try:
        return str(error)
    except Exception:
        return f"{type(error).__name__}: {_represented(error.args)}"


def dump(error: BaseException) -> dict[str, JSON]:
    """Return the error as JSON: its class, message, arguments and fields."""
    kind = type(error)
    fields = {
        name: _storable(value)
        for name, value in vars(error).items()
        if name.isidentifier() and name[0] != "_"
    }
    stored: dict[str, JSON] = {
        "kind": f"{kind.__module__}:{kind.__qualname__}",
        "message": clean(_said(error)),
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
    except Exception:  # a module may fail in its own way when it is imported
        return None
    # Only an exception is ever made from what is stored, and never by calling anything.
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def load(stored: dict[str, JSON]) -> Exception:
    """Rebuild what `dump` returned.

    An error that cannot say again what it said becomes StoredError: its class is gone, it cannot
    be made without its `__init__`, or its words need what is not stored (a private field, an
    object).
    """
    kind, message = _class_named(stored["kind"]), stored["message"]
    # An argument that is stored as text may read differently; its message alone then is argument.
    for arguments in (stored["args"], [message]):
        error = _made(kind, arguments, stored["fields"]) if kind else None
        if error is not None and _speaks(error, message):
            return error
    return StoredError(message, kind=stored["kind"])


def _made(
    kind: type[Exception], arguments: list[JSON], fields: dict[str, JSON]
) -> Exception | None:
    try:
        error = kind.__new__(kind, *arguments)
        error.args = tuple(arguments)
        vars(error).update(fields)
    except Exception:
        return None
    return error


def _speaks(error: Exception, message: str) -> bool:
    try:
        return clean(str(error)) == message
    except Exception:
        return False
