"""The engine's settings, typed, each read from `settings.DURABLE` when it is asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings

_DEFAULTS: dict[str, Any] = {
    "LEASE_TTL": 15.0,
    "SWEEP_INTERVAL": 5.0,
    "PREPARED_STATEMENTS": True,
    "MAX_ATTEMPTS": 5,
    "RECONCILE_ATTEMPTS": 5,
    "RELAXED_COMMITS": True,
}


def _setting(name: str) -> Any:
    return getattr(settings, "DURABLE", {}).get(name, _DEFAULTS[name])


def lease_ttl() -> timedelta:
    """How long a claim holds without renewal."""
    return timedelta(seconds=_setting("LEASE_TTL"))


def lease_margin() -> float:
    """Seconds before the TTL at which an executor considers its own lease lost."""
    stated = getattr(settings, "DURABLE", {}).get("LEASE_MARGIN")
    return lease_ttl().total_seconds() / 5 if stated is None else float(stated)


def sweep_interval() -> float:
    """Seconds between two sweeps."""
    return float(_setting("SWEEP_INTERVAL"))


def prepared_statements() -> bool:
    """Whether statements are prepared on the engine's own connections."""
    return bool(_setting("PREPARED_STATEMENTS"))


def max_attempts() -> int:
    """Claims in a row without progress after which a run is blocked."""
    return int(_setting("MAX_ATTEMPTS"))


def reconcile_attempts() -> int:
    """How often "still unknown" is asked again before a person is asked."""
    return int(_setting("RECONCILE_ATTEMPTS"))


def relaxed_commits() -> bool:
    """Whether cheap pure tasks may commit without waiting for the disk."""
    return bool(_setting("RELAXED_COMMITS"))


def tenant() -> str:
    """Whose runs are meant where nobody says."""
    return str(getattr(settings, "TENANT", "default"))
