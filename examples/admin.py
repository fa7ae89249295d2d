"""The shop's tables for looking at: they change only through the shop's own functions."""

from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from examples.models import Order, Product

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Model]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnly(ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Order)
class OrderAdmin(ReadOnly):
    list_display = ("order_id", "customer_id", "total", "currency", "status", "created_at")
    list_filter = ("status", "currency")
    search_fields = ("order_id", "customer_id", "run_id")


@admin.register(Product)
class ProductAdmin(ReadOnly):
    list_display = ("sku", "on_hand")
    search_fields = ("sku",)
