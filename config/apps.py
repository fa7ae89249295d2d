from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """An app only so that its management commands are found."""

    name = "config"
