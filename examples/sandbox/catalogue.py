"""What the three services offer, and which bodies they accept. Pure: values in, values out."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from examples.strict_json import Json

AMOUNT = re.compile(r"\d{1,10}(\.\d{1,2})?", re.ASCII)
CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)


class Service(StrEnum):
    PAYMENTS = "payments"
    CARRIER = "carrier"
    MAIL = "mail"


class BadBody(Exception):
    """The body is not what the operation takes."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing a service does. `business` names the field by which doing it twice would show."""

    service: Service
    name: str
    path: str
    prefix: str
    fields: Mapping[str, Callable[[Json], bool]]
    business: tuple[str, ...]

    def check(self, body: Json) -> dict[str, Json]:
        """Return the body if it has exactly the right fields; BadBody says which is wrong."""
        if not isinstance(body, dict):
            raise BadBody("the body is not a JSON object")
        for field, accepts in self.fields.items():
            if field not in body:
                raise BadBody(f"{field} is missing")
            if not accepts(body[field]):
                raise BadBody(f"{field} is not acceptable")
        unknown = sorted(body.keys() - self.fields.keys())
        if unknown:
            raise BadBody(f"{unknown[0]} is not a field of {self.name}")
        return body

    def business_key(self, body: Mapping[str, Json]) -> str:
        """Name the thing that must happen once, whatever idempotency key was sent."""
        return " / ".join(str(body[field]) for field in self.business)


def _text(value: Json) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 10_000


def _amount(value: Json) -> bool:
    return isinstance(value, str) and AMOUNT.fullmatch(value) is not None and float(value) > 0


def _currency(value: Json) -> bool:
    return isinstance(value, str) and CURRENCY.fullmatch(value) is not None


def _mapping(value: Json) -> bool:
    return isinstance(value, dict) and bool(value)


def _listing(value: Json) -> bool:
    return isinstance(value, list) and bool(value)


OPERATIONS = (
    Operation(
        service=Service.PAYMENTS,
        name="charge",
        path="charges",
        prefix="ch",
        fields={
            "order_id": _text,
            "customer_id": _text,
            "amount": _amount,
            "currency": _currency,
        },
        business=("order_id",),
    ),
    Operation(
        service=Service.PAYMENTS,
        name="refund",
        path="refunds",
        prefix="re",
        fields={"charge_id": _text, "amount": _amount, "currency": _currency},
        business=("charge_id",),
    ),
    Operation(
        service=Service.CARRIER,
        name="shipment",
        path="shipments",
        prefix="sh",
        fields={"order_id": _text, "ship_to": _mapping, "lines": _listing},
        business=("order_id",),
    ),
    Operation(
        service=Service.CARRIER,
        name="cancellation",
        path="cancellations",
        prefix="ca",
        fields={"shipment_id": _text},
        business=("shipment_id",),
    ),
    Operation(
        service=Service.MAIL,
        name="message",
        path="messages",
        prefix="ms",
        fields={"to": _text, "subject": _text, "body": _text},
        business=("to", "subject"),
    ),
)

BY_PATH = {(operation.service.value, operation.path): operation for operation in OPERATIONS}


def names(service: Service) -> tuple[str, ...]:
    """The names of a service's operations, in order."""
    return tuple(operation.name for operation in OPERATIONS if operation.service is service)
