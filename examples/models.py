"""The shop's own tables: what is on the shelf, what was ordered, what is put aside for whom."""

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Product(models.Model):
    """Something on the shelf; `on_hand` counts what is neither sold nor put aside."""

    sku = models.CharField(max_length=40, primary_key=True)
    on_hand = models.IntegerField()

    class Meta:
        ordering: ClassVar = ["sku"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(on_hand__gte=0), name="product_on_hand_not_negative")
        ]

    def __str__(self) -> str:
        return self.sku


class OrderStatus(models.TextChoices):
    NEW = "new"
    RESERVED = "reserved"
    CHARGED = "charged"
    SHIPPED = "shipped"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


# From where an order may come to a status. Nothing leaves rejected or cancelled.
MOVES: dict[OrderStatus, frozenset[OrderStatus]] = {
    OrderStatus.NEW: frozenset(),
    OrderStatus.RESERVED: frozenset({OrderStatus.NEW}),
    OrderStatus.CHARGED: frozenset({OrderStatus.RESERVED}),
    OrderStatus.SHIPPED: frozenset({OrderStatus.CHARGED}),
    OrderStatus.REJECTED: frozenset({OrderStatus.NEW, OrderStatus.RESERVED}),
    OrderStatus.CANCELLED: frozenset(
        {OrderStatus.NEW, OrderStatus.RESERVED, OrderStatus.CHARGED, OrderStatus.SHIPPED}
    ),
}


class Order(models.Model):
    """One order as the customer sent it, and how far the shop has come with it."""

    order_id = models.TextField(primary_key=True)
    customer_id = models.TextField()
    total = models.DecimalField(max_digits=12, decimal_places=2)
    currency = models.CharField(max_length=3)
    lines = models.JSONField()
    status = models.CharField(
        max_length=16, choices=OrderStatus.choices, default=OrderStatus.NEW, db_default="new"
    )
    reason = models.TextField(blank=True, default="", db_default="")
    run_id = models.UUIDField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering: ClassVar = ["-created_at", "order_id"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(status__in=OrderStatus.values), name="order_status_known"
            ),
            models.CheckConstraint(condition=Q(total__gte=0), name="order_total_not_negative"),
        ]

    def __str__(self) -> str:
        return self.order_id


class Reservation(models.Model):
    """Pieces put aside for an order until they are released or gone with the shipment."""

    order = models.ForeignKey(Order, on_delete=models.PROTECT, related_name="reservations")
    sku = models.ForeignKey(Product, on_delete=models.PROTECT, db_column="sku")
    quantity = models.IntegerField()
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["order", "sku"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["order", "sku"], name="reservation_once_per_order"),
            models.CheckConstraint(condition=Q(quantity__gt=0), name="reservation_quantity"),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} x {self.sku_id} for {self.order_id}"
