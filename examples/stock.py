"""Putting goods aside for orders, and moving orders along.

The functions open no transaction of their own: their caller has one, in which the record of the
step commits too. Every write is guarded by its WHERE clause; SKUs are always taken in the same
order, so that two orders for the same goods cannot wait for each other.
"""

from collections import Counter
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from examples.models import MOVES, Order, OrderStatus, Product, Reservation

# What the demo shop has of anything it has never heard of.
FIRST_STOCK = 100_000


class OutOfStock(Exception):
    """Less is on hand than was ordered; nothing was reserved once the transaction rolls back."""

    def __init__(self, sku: str, wanted: int, on_hand: int) -> None:
        super().__init__(f"{wanted} of {sku} wanted, {on_hand} on hand")
        self.sku = sku
        self.wanted = wanted
        self.on_hand = on_hand


class UnknownOrder(Exception):
    """There is no order with this id."""


class WrongMove(Exception):
    """The order's present status does not lead to the wanted one."""

    def __init__(self, order_id: str, present: str, wanted: str) -> None:
        super().__init__(f"order {order_id} is {present} and cannot become {wanted}")
        self.order_id = order_id
        self.present = present
        self.wanted = wanted


def place(order: dict[str, Any], run_id: UUID | str | None = None) -> None:
    """Write the order down as new; does nothing if it is there already."""
    Order.objects.bulk_create(
        [
            Order(
                order_id=order["order_id"],
                customer_id=order["customer_id"],
                total=Decimal(order["total"]),
                currency=order["currency"],
                lines=order["lines"],
                run_id=UUID(str(run_id)) if run_id else None,
            )
        ],
        ignore_conflicts=True,
    )


def reserve(order: dict[str, Any], run_id: UUID | str | None = None) -> dict[str, Any]:
    """Put the order's goods aside and return what was: {"order_id", "reserved": [{sku, quantity}]}.

    Places the order if it is new. Reserving a reserved order again changes nothing. Raises
    OutOfStock, or WrongMove when the order is past being reserved.
    """
    order_id = order["order_id"]
    place(order, run_id)
    if _move(order_id, OrderStatus.RESERVED):
        _put_aside(order_id, order["lines"])
    else:
        _require(order_id, OrderStatus.RESERVED)
    reserved = Reservation.objects.filter(order_id=order_id, released_at=None).order_by("sku")
    return {
        "order_id": order_id,
        "reserved": [{"sku": each.sku_id, "quantity": each.quantity} for each in reserved],
    }


def release(order_id: str) -> dict[str, Any]:
    """Put back what is still put aside for an order; return it like `reserve`, as "released"."""
    released = []
    for each in Reservation.objects.filter(order_id=order_id).order_by("sku"):
        mine = Reservation.objects.filter(pk=each.pk, released_at=None).update(released_at=Now())
        if mine:
            Product.objects.filter(sku=each.sku_id).update(on_hand=F("on_hand") + each.quantity)
            released.append({"sku": each.sku_id, "quantity": each.quantity})
    return {"order_id": order_id, "released": released}


def mark(order_id: str, status: str, reason: str = "") -> None:
    """Move an order to a status; nothing happens if it is there already.

    Raises WrongMove if MOVES has no way there, UnknownOrder, or ValueError for no status at all.
    """
    wanted = OrderStatus(status)
    if not _move(order_id, wanted, reason):
        _require(order_id, wanted)


def _move(order_id: str, wanted: OrderStatus, reason: str = "") -> bool:
    movable = Order.objects.filter(order_id=order_id, status__in=MOVES[wanted])
    return movable.update(status=wanted, reason=reason) == 1


def _require(order_id: str, wanted: OrderStatus) -> None:
    """Explain a move that found nothing to move, unless the order is where it should go."""
    present = Order.objects.filter(order_id=order_id).values_list("status", flat=True).first()
    if present is None:
        raise UnknownOrder(order_id)
    if present != wanted:
        raise WrongMove(order_id, present, wanted)


def _put_aside(order_id: str, lines: list[dict[str, Any]]) -> None:
    wanted: Counter[str] = Counter()
    for line in lines:
        wanted[line["sku"]] += line["quantity"]
    skus = sorted(wanted)
    Product.objects.bulk_create(
        [Product(sku=sku, on_hand=FIRST_STOCK) for sku in skus], ignore_conflicts=True
    )
    for sku in skus:
        enough = Product.objects.filter(sku=sku, on_hand__gte=wanted[sku])
        if enough.update(on_hand=F("on_hand") - wanted[sku]) == 0:
            on_hand = Product.objects.values_list("on_hand", flat=True).get(sku=sku)
            raise OutOfStock(sku, wanted[sku], on_hand)
    Reservation.objects.bulk_create(
        [Reservation(order_id=order_id, sku_id=sku, quantity=wanted[sku]) for sku in skus]
    )
