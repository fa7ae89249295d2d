"""The Celery application; its settings are the CELERY_* names in settings.py."""

import os

from celery import Celery
from celery.signals import worker_process_init

from config import leash

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("standfast")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
# Every worker carries the sweeper. By name: the models may not be imported yet.
app.steps["worker"].add("durable.sweeper_step:SweeperStep")


@worker_process_init.connect
def end_with_the_master(**_kwargs: object) -> None:
    """Let a pool process die with its master, whose successor would otherwise work beside it."""
    leash.hold()
