"""Start-up: find the workflows of the installed apps, connect the hint to Celery."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class DurableConfig(AppConfig):
    name = "durable"
    verbose_name = "Durable runs"

    def ready(self) -> None:
        from durable import checks, signals, tasks  # noqa: F401

        # Nobody listening is legal: the sweep finds the run.
        signals.run_ready.connect(tasks.hint, dispatch_uid="durable.hint")
        signals.message_stored.connect(tasks.hint_relay, dispatch_uid="durable.relay")
        autodiscover_modules("workflows")
