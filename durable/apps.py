from django.apps import AppConfig


class DurableConfig(AppConfig):
    name = "durable"
