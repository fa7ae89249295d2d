"""Reading JSON strictly: no NaN, no duplicate names, no numbers or depths that break a reader."""

import json
from typing import Any, Never

Json = Any


class NotJson(ValueError):
    """The text is not JSON that two readers would understand alike. The message says why."""


def loads(text: str | bytes) -> Json:
    """Read one JSON value; raise NotJson for anything ambiguous."""
    try:
        value = json.loads(text, parse_constant=_constant, object_pairs_hook=_object)
        canonical(value).encode()
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except UnicodeDecodeError:
        raise NotJson("not UTF-8") from None
    except UnicodeEncodeError:
        raise NotJson("half of a surrogate pair stands alone") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at character {error.pos + 1}") from None
    except ValueError:
        raise NotJson("a number is too long") from None
    return value


def canonical(value: Json) -> str:
    """One text for one value, whatever the order of its names."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _constant(name: str) -> Never:
    raise NotJson(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    names = dict(pairs)
    if len(names) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NotJson(f"{name} is given twice")
            seen.add(name)
    return names
