"""The example shop: orders, stock, and a sandbox of the outside services it pays and ships with."""

from django.apps import AppConfig


class ExamplesConfig(AppConfig):
    name = "examples"
    verbose_name = "Example shop"
    default_auto_field = "django.db.models.BigAutoField"
