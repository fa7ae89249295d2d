"""`manage.py check`: what the engine's promises rest on."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register

from durable import conf


@register(Tags.database)
def postgresql_only(
    app_configs: Any = None, databases: Any = None, **kwargs: Any
) -> list[CheckMessage]:
    engine = settings.DATABASES["default"]["ENGINE"]
    if "postgresql" in engine:
        return []
    return [
        Error(
            f"The default database is {engine}; durable runs need PostgreSQL.",
            hint="Set DATABASE_URL to a postgresql:// address.",
            id="durable.E001",
        )
    ]


@register()
def acknowledged_late(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    if getattr(settings, "CELERY_TASK_ACKS_LATE", False):
        return []
    return [
        Error(
            "CELERY_TASK_ACKS_LATE is off: a worker's death would lose its wake-up.",
            hint="Set CELERY_TASK_ACKS_LATE = True and CELERY_TASK_REJECT_ON_WORKER_LOST = True.",
            id="durable.E002",
        )
    ]


@register()
def margin_below_ttl(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    ttl, margin = conf.lease_ttl().total_seconds(), conf.lease_margin()
    if 0 < margin < ttl / 2:
        return []
    return [
        Error(
            f"DURABLE_LEASE_MARGIN is {margin} s with a lease of {ttl} s.",
            hint="The margin must be above 0 and below half the lease.",
            id="durable.E003",
        )
    ]
