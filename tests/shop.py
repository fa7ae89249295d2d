"""Effects of a small shop for tests inside one process; `service` is their outside."""

from __future__ import annotations

from typing import Any

from durable import Call, Failure, Retry, effect
from tests.scenario import Service

service = Service()


class Declined(Failure):
    """The bank said no."""

    def __init__(self, decline_code: str, limit: float) -> None:
        super().__init__(f"declined: {decline_code}")
        self.decline_code = decline_code
        self.limit = limit


def _find(call: Call) -> Any:
    return service.find(call.key)


def _undo(call: Call, result: Any) -> Any:
    return service.do(call.key, result)


@effect(
    key="{order}:pay",
    target="{customer}",
    amount="{amount} USD",
    title="Charge {amount} USD to {customer}",
    timeout=20,
    settle=20,
    reconcile=_find,
    undo="remedy",
    compensate=_undo,
    reconcile_undo=_find,
    failures=(Declined,),
)
def pay(call: Call, order: str, amount: str, customer: str = "acme") -> Any:
    return service.do(call.key, amount)


@effect(key="{order}:blind", timeout=20, settle=20, compensate=_undo)
def pay_blind(call: Call, order: str) -> Any:
    """A payment that nobody can look up."""
    return service.do(call.key, "blind")


@effect(
    key="{order}:ship",
    timeout=20,
    settle=20,
    reconcile=_find,
    compensate=_undo,
    reconcile_undo=_find,
)
def ship(call: Call, order: str) -> Any:
    return service.do(call.key, "parcel")


@effect(key="{order}:mail", timeout=20, settle=20)
def mail(call: Call, order: str) -> Any:
    """A message: it can be neither looked up nor undone."""
    return service.do(call.key, "mail")


@effect(
    key="{order}:forgotten",
    timeout=20,
    settle=20,
    key_valid_for=3600,
    retry=Retry(attempts=5, initial=60, jitter=0),
)
def pay_forgetful(call: Call, order: str) -> Any:
    """A payment at a service that remembers keys for an hour."""
    return service.do(call.key, "forgetful")


@effect(
    key="{order}:dedup", timeout=20, settle=20, reconcile=_find, deduplicates=True, undo="remedy"
)
def pay_once(call: Call, order: str) -> Any:
    """A payment at a service that itself does a key once."""
    found = service.keys(call.key)
    return {"id": "again"} if found else service.do(call.key, "once")
