"""Reading orders from JSON lines, strictly: an order that can be misread is not accepted. Pure."""

import re
from collections.abc import Callable
from datetime import date
from typing import Any

from examples.strict_json import NotJson, loads

NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
PRICE = re.compile(r"[0-9]{1,10}(\.[0-9]{1,4})?")
MONEY = re.compile(r"[0-9]{1,10}\.[0-9]{2}")
CURRENCY = re.compile(r"[A-Z]{3}")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
LONGEST_LINE = 1_000_000
LONGEST_TEXT = 200
MOST_PIECES = 1_000_000

Check = Callable[[Any], str]


class BadLine(Exception):
    """A line that is not an order. `number` counts from 1; `path` is like `lines[2].quantity`."""

    def __init__(self, number: int, path: str, message: str) -> None:
        super().__init__(
            f"line {number}: {path}: {message}" if path else f"line {number}: {message}"
        )
        self.number = number
        self.path = path
        self.message = message


class _Problem(Exception):
    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def parse(line: str, number: int) -> dict[str, Any]:
    """Return the order that a line holds, amounts still decimal strings; raise BadLine."""
    if len(line) > LONGEST_LINE:
        raise BadLine(number, "", f"longer than {LONGEST_LINE} characters")
    try:
        order = loads(line)
    except NotJson as problem:
        raise BadLine(number, "", str(problem)) from None
    try:
        _fields(order, "", ORDER)
        _fields(order["ship_to"], "ship_to", SHIP_TO)
        for index, each in enumerate(order["lines"]):
            _fields(each, f"lines[{index}]", LINE)
    except _Problem as problem:
        raise BadLine(number, problem.path, problem.message) from None
    return dict(order)


def _fields(value: Any, path: str, checks: dict[str, Check]) -> None:
    """Require exactly the checked fields, each acceptable."""
    if not isinstance(value, dict):
        raise _Problem(path, "must be an object")
    prefix = f"{path}." if path else ""
    for name in checks:
        if name not in value:
            raise _Problem(prefix + name, "is missing")
    for name in value:
        if name not in checks:
            raise _Problem(prefix + name, "is not a field of an order")
    for name, check in checks.items():
        message = check(value[name])
        if message:
            raise _Problem(prefix + name, message)


def _pattern(pattern: re.Pattern[str], message: str) -> Check:
    def check(value: Any) -> str:
        return "" if isinstance(value, str) and pattern.fullmatch(value) else message

    return check


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return "must be text"
    if not value.strip() or len(value) > LONGEST_TEXT:
        return f"must be 1 to {LONGEST_TEXT} characters long"
    return "" if value.isprintable() else "holds a control character"


def _text_or_null(value: Any) -> str:
    return "" if value is None else _text(value)


def _day(value: Any) -> str:
    message = "must be a date like 2026-03-31"
    if not isinstance(value, str) or not DAY.fullmatch(value):
        return message
    try:
        date.fromisoformat(value)
    except ValueError:
        return message
    return ""


def _discount(value: Any) -> str:
    if isinstance(value, str) and PRICE.fullmatch(value) and float(value) <= 1:
        return ""
    return 'must be a decimal string from "0" to "1"'


def _quantity(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_PIECES:
        return f"must be a whole number from 1 to {MOST_PIECES}"
    return ""


def _object(value: Any) -> str:
    return "" if isinstance(value, dict) else "must be an object"


def _some(value: Any) -> str:
    return "" if isinstance(value, list) and value else "must be a list with at least one line"


_name = _pattern(NAME, "must be 1 to 40 letters, digits, dots, dashes or underscores")

ORDER: dict[str, Check] = {
    "order_id": _name,
    "customer_id": _name,
    "ordered_on": _day,
    "ship_to": _object,
    "lines": _some,
    "total": _pattern(MONEY, 'must be a decimal string with two places, like "440.00"'),
    "currency": _pattern(CURRENCY, "must be three capital letters"),
}
SHIP_TO: dict[str, Check] = {
    "name": _text,
    "street": _text,
    "city": _text,
    "region": _text_or_null,
    "postal_code": _text_or_null,
    "country": _text,
}
LINE: dict[str, Check] = {
    "sku": _name,
    "unit_price": _pattern(PRICE, 'must be a decimal string, like "14.00"'),
    "quantity": _quantity,
    "discount": _discount,
}
