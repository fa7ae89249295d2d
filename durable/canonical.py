"""The one JSON form that is stored, shown, hashed and sent (RFC 8785), and its limits.

Pure: imports no framework. Values are I-JSON (RFC 7493): no NaN or infinity, integers within
2^53, no lone surrogates, no NUL, no duplicate keys, bounded depth and size.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from typing import Any

import rfc8785

from durable.errors import InvalidValue, ValueTooLarge

JSON = Any  # str, int, float, bool, None, list of JSON, dict of str to JSON

MAX_DEPTH = 64
MAX_BYTES = 1024 * 1024
MAX_SAFE_INTEGER = 2**53 - 1
# From here on RFC 8785 writes a float with an exponent, below it as digits alone.
FIRST_EXPONENT = 1e21

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def check_text(text: str, path: str) -> None:
    """Refuse what PostgreSQL or another JSON reader cannot hold."""
    found = UNSTORABLE.search(text)
    if found:
        what = "a NUL character" if found.group() == "\x00" else "a lone surrogate"
        raise InvalidValue(f"contains {what}", path=path)


def _check_number(value: float, path: str) -> None:
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise InvalidValue("integer is beyond 2^53, send it as text", path=path)
    elif not math.isfinite(value):
        raise InvalidValue("NaN and infinity are not JSON", path=path)
    elif MAX_SAFE_INTEGER < abs(value) < FIRST_EXPONENT:
        # It would be written as an integer beyond 2^53, which nobody could read back.
        raise InvalidValue("number is beyond 2^53, send it as text", path=path)


def _plain(value: object, path: str, depth: int, limit: int) -> JSON:
    """Return `value` as plain JSON types, or raise InvalidValue with the path of the culprit."""
    if value is None or value is True or value is False:
        return value
    if type(value) is str:
        check_text(value, path)
        return value
    if type(value) in (int, float):
        _check_number(value, path)  # type: ignore[arg-type]
        return value
    if depth >= limit:
        raise InvalidValue(f"nested deeper than {limit} levels", path=path)
    if isinstance(value, (list, tuple)):
        return [
            _plain(item, f"{path}[{index}]", depth + 1, limit) for index, item in enumerate(value)
        ]
    if isinstance(value, dict):
        return _plain_object(value, path, depth, limit)
    if isinstance(value, str):  # an enum member or another subclass: its plain text
        return _plain(str.__str__(value), path, depth, limit)
    raise InvalidValue(f"{type(value).__name__} is not JSON", path=path)


def _plain_object(value: dict[Any, object], path: str, depth: int, limit: int) -> JSON:
    if isinstance(value, _Repeating):
        raise InvalidValue(f"key {value.key!r} appears twice", path=path)
    plain = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidValue(f"key {key!r} is not text", path=path)
        check_text(key, f"{path} key")
        name = str.__str__(key)
        plain[name] = _plain(item, f"{path}.{name}", depth + 1, limit)
    return plain


def plain(value: object, *, path: str = "value", max_depth: int = MAX_DEPTH) -> JSON:
    """Copy `value` into plain JSON types. Tuples become lists.

    Raises InvalidValue, which names the path of the offending value (never the value).
    """
    return _plain(value, path, 0, max_depth)


def _has_float_or_wide_key(value: JSON) -> bool:
    if type(value) is float:
        return True
    if type(value) is dict:
        return any(not key.isascii() or _has_float_or_wide_key(v) for key, v in value.items())
    if type(value) is list:
        return any(_has_float_or_wide_key(item) for item in value)
    return False


_encode = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
).encode


def dumps(value: object, *, path: str = "value", max_bytes: int = MAX_BYTES) -> str:
    """Return the RFC 8785 text of `value`; equal values give equal text in every language.

    Raises InvalidValue for what is not I-JSON, ValueTooLarge beyond `max_bytes` bytes.
    """
    checked = plain(value, path=path)
    # The C encoder writes the same bytes ten times faster, except for floats and for key order
    # outside ASCII (RFC 8785 sorts by UTF-16 code unit).
    wide = _has_float_or_wide_key(checked)
    text = rfc8785.dumps(checked).decode() if wide else _encode(checked)
    if len(text) > max_bytes or len(text.encode()) > max_bytes:
        raise ValueTooLarge(f"is larger than {max_bytes} bytes", path=path)
    return text


# What an event adds around a result.
HEADROOM_BYTES = 64 * 1024
HEADROOM_DEPTH = 8


def dumps_result(value: object, *, path: str) -> str:
    """Like `dumps`, for what will be stored inside an event: with room for the event around it."""
    checked = plain(value, path=path, max_depth=MAX_DEPTH - HEADROOM_DEPTH)
    return dumps(checked, path=path, max_bytes=MAX_BYTES - HEADROOM_BYTES)


class _Repeating(dict[str, JSON]):
    """A parsed object that names a key twice: refused where its path is known."""

    key: str


def _object(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    repeating = _Repeating(value)
    repeating.key, _ = Counter(name for name, _ in pairs).most_common(1)[0]
    return repeating


def loads(text: str | bytes, *, path: str = "value", max_depth: int = MAX_DEPTH) -> JSON:
    """Parse strict JSON from outside: no duplicate keys, NaN, huge numbers or deep nesting.

    Raises InvalidValue with the path of the culprit, which begins with `path`.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        reason = f"is not readable JSON ({type(error).__name__})"
        raise InvalidValue(reason, path=path) from error
    return plain(value, path=path, max_depth=max_depth)


def digest(domain: str, text: str) -> str:
    """SHA-256 in hex over a versioned, domain-separated, length-prefixed frame."""
    body = text.encode()
    frame = f"standfast/1/{domain}/{len(body)}:".encode() + body
    return hashlib.sha256(frame).hexdigest()


def short_digest(text: str) -> str:
    """96 bits of SHA-256: enough to notice that a replayed call differs, small in the log."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]
