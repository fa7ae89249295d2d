"""What will run, value by value: every bound name with its value, none folded away. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dashboard import text
from durable import canonical
from durable.canonical import JSON
from durable.errors import InvalidValue

# Longer values are shown from their beginning, with their length, hash and a link to all of it.
LONG = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One bound parameter as its reader sees it."""

    position: int
    name: str
    kind: str  # what JSON says it is: "100" and 100 are not the same request
    value: str
    is_block: bool  # several lines, or a structure
    warnings: tuple[str, ...]

    @property
    def is_long(self) -> bool:
        return len(self.value) > LONG


def parameters(stored: str) -> list[Parameter]:
    """Every bound parameter, in the order of the bound text.

    Text that cannot be read as an object is shown as one value, as it is.
    """
    try:
        bound = canonical.loads(stored)
    except InvalidValue:
        bound = stored
    if not isinstance(bound, dict):
        bound = {"(all of it)": stored}
    return [
        _parameter(position, name, value) for position, (name, value) in enumerate(bound.items())
    ]


_KINDS = {str: "text", bool: "yes or no", int: "number", float: "number", type(None): "nothing"}


def _parameter(position: int, name: str, value: JSON) -> Parameter:
    is_structure = isinstance(value, (dict, list))
    if isinstance(value, str):
        said = value
    elif is_structure:
        said = json.dumps(value, ensure_ascii=False, indent=2)
    else:
        said = json.dumps(value)
    return Parameter(
        position=position,
        name=name,
        kind=_KINDS.get(type(value), "list" if isinstance(value, list) else "group"),
        value=said,
        is_block=is_structure or "\n" in said or len(said) > LONG,
        warnings=tuple(dict.fromkeys((*text.warnings(name), *text.warnings(said)))),
    )
