"""The order workflow: check, put aside, charge, ship, tell the customer.

A large charge waits for a person (examples/policies.py). Whatever happens after the charge that
cannot be mended is undone, newest first.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from durable import (
    ApprovalExpired,
    ApprovalRejected,
    Call,
    Failure,
    Happened,
    NotFound,
    Retryable,
    effect,
    run_info,
    task,
    workflow,
)
from examples import services, stock
from examples.models import OrderStatus

JSON = dict[str, Any]


class InvalidOrder(Failure):
    """The order does not add up."""


class PaymentDeclined(Failure):
    """The customer's bank said no."""

    def __init__(self, decline_code: str, amount: str) -> None:
        super().__init__(f"declined: {decline_code} for {amount}")
        self.decline_code = decline_code
        self.amount = amount


def _answer(ask: Callable[[], JSON]) -> JSON:
    """Say in the engine's words what a service said; anything else stays "not known"."""
    try:
        return ask()
    except services.RateLimited as error:
        raise Retryable(str(error), retry_after=error.retry_after) from error
    except services.NotSent as error:
        raise Retryable(str(error)) from error
    except services.Declined as error:
        raise PaymentDeclined(error.decline_code, error.amount) from error
    except services.Refused as error:
        raise Failure(str(error)) from error


def _sent_by(call: Call) -> JSON:
    """What every request names: its key, its fence, its run, and how long to wait."""
    return {
        "idempotency_key": call.key,
        "fence": call.fence,
        "run": str(call.run_id),
        "timeout": call.timeout,
    }


def _found(resource: JSON | None) -> Happened | type[NotFound]:
    return NotFound if resource is None else Happened(result=resource, resource=resource["id"])


# Putting goods aside ----------------------------------------------------------------------------


@task()
def validate(order: JSON) -> JSON:
    """Refuse an order whose total is not the sum of its lines."""
    total = sum(
        (
            Decimal(line["unit_price"]) * line["quantity"] * (1 - Decimal(line["discount"]))
            for line in order["lines"]
        ),
        start=Decimal(0),
    )
    if total.quantize(Decimal("0.01")) != Decimal(order["total"]).quantize(Decimal("0.01")):
        raise InvalidOrder(f"the lines add up to {total:.2f}, the order says {order['total']}")
    return {"order_id": order["order_id"], "lines": len(order["lines"])}


def put_back(order: JSON) -> None:
    """Undo `reserve_stock`: the goods are for sale again and the order is off."""
    stock.release(order["order_id"])
    stock.mark(order["order_id"], OrderStatus.CANCELLED, "undone")


@task(atomic=True, compensate=put_back)
def reserve_stock(order: JSON, run_id: str) -> JSON:
    return stock.reserve(order, run_id)


@task(atomic=True)
def call_off(order_id: str, reason: str) -> None:
    """End an order that was never charged."""
    stock.release(order_id)
    stock.mark(order_id, OrderStatus.CANCELLED, reason[:500])


@task(atomic=True)
def mark(order_id: str, status: str) -> None:
    stock.mark(order_id, status)


# The outside ------------------------------------------------------------------------------------


def find_charge(call: Call) -> Happened | type[NotFound]:
    return _found(services.payments.find_charge(call.key))


def refund(call: Call, result: JSON, amount: str, currency: str) -> JSON:
    return _answer(
        lambda: services.payments.refund(
            charge_id=result["id"],
            amount=amount,
            currency=currency,
            **_sent_by(call),
        )
    )


def find_refund(call: Call) -> Happened | type[NotFound]:
    return _found(services.payments.find_refund(call.key))


@effect(
    key="{order_id}:charge",
    target="customer {customer_id}",
    amount="{amount} {currency}",
    title="Charge {amount} {currency} to customer {customer_id}",
    timeout=10,
    settle=20,
    deduplicates=True,
    reconcile=find_charge,
    undo="remedy",
    compensate=refund,
    reconcile_undo=find_refund,
    failures=(PaymentDeclined,),
)
def charge(call: Call, order_id: str, customer_id: str, amount: str, currency: str) -> JSON:
    return _answer(
        lambda: services.payments.charge(
            order_id=order_id,
            customer_id=customer_id,
            amount=amount,
            currency=currency,
            **_sent_by(call),
        )
    )


def find_shipment(call: Call) -> Happened | type[NotFound]:
    return _found(services.carrier.find_shipment(call.key))


def call_back(call: Call, result: JSON) -> JSON:
    return _answer(
        lambda: services.carrier.cancel(
            shipment_id=result["id"],
            **_sent_by(call),
        )
    )


def find_cancellation(call: Call) -> Happened | type[NotFound]:
    return _found(services.carrier.find_cancellation(call.key))


@effect(
    key="{order_id}:ship",
    target="order {order_id}",
    title="Ship order {order_id}",
    timeout=10,
    settle=20,
    deduplicates=True,
    reconcile=find_shipment,
    undo="reversible",
    compensate=call_back,
    reconcile_undo=find_cancellation,
)
def create_shipment(call: Call, order_id: str, ship_to: JSON, lines: list[JSON]) -> JSON:
    return _answer(
        lambda: services.carrier.ship(
            order_id=order_id,
            ship_to=ship_to,
            lines=lines,
            **_sent_by(call),
        )
    )


def find_message(call: Call) -> Happened | type[NotFound]:
    return _found(services.mail.find(call.key))


@effect(
    key="{order_id}:confirmation",
    target="customer {customer_id}",
    title="Tell customer {customer_id} that order {order_id} is on its way",
    timeout=10,
    settle=20,
    deduplicates=True,
    reconcile=find_message,
    undo="manual",  # nobody can unread a message
)
def send_confirmation(call: Call, order_id: str, customer_id: str, shipment_id: str) -> JSON:
    return _answer(
        lambda: services.mail.send(
            to=f"{customer_id.lower()}@customers.example",
            subject=f"Your order {order_id}",
            body=f"Order {order_id} is on its way with shipment {shipment_id}.",
            **_sent_by(call),
        )
    )


@workflow(version="1")
def fulfil(order: JSON) -> JSON:
    """Bring one order to the customer, or call it off with everything undone."""
    order_id = order["order_id"]
    validate(order)
    reserve_stock(order, str(run_info().id))
    try:
        paid = charge(order_id, order["customer_id"], order["total"], order["currency"])
    except (ApprovalRejected, ApprovalExpired, PaymentDeclined) as error:
        call_off(order_id, str(error))
        return {"order_id": order_id, "status": "cancelled", "reason": str(error)}
    mark(order_id, OrderStatus.CHARGED)
    shipped = create_shipment(order_id, order["ship_to"], order["lines"])
    mark(order_id, OrderStatus.SHIPPED)
    send_confirmation(order_id, order["customer_id"], shipped["id"])
    return {
        "order_id": order_id,
        "status": "shipped",
        "charge": paid["id"],
        "shipment": shipped["id"],
    }
