"""Starting a scenario, looking at it, and deciding in it as a person does."""

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import connection

from approvals import decisions
from approvals.models import Approval, Decision
from durable import canonical, runs
from durable.models import Event, IdempotencyRecord, Lease, Run
from tests.sandbox_fixture import Sandbox


def start(workflow: str, order: str, amount: str = "10.00", **fields: Any) -> Run:
    """Start one of the scenarios' workflows, as oscar."""
    given = {"id": order, "amount": amount, **fields}
    return runs.start(f"scenario_{workflow}", given, actor="user:oscar").run


def now(run: Run) -> Run:
    """The run as it is now."""
    return Run.objects.get(id=run.id)


def output(run: Run) -> Any:
    """What the run returned; fails when it has not returned."""
    text = now(run).output
    assert text is not None, now(run).status
    return canonical.loads(text)


def due(run: Run) -> datetime:
    """When the run wants to go on."""
    at = now(run).wake_at
    assert at is not None, now(run).status
    return at


def settled(record: IdempotencyRecord) -> datetime:
    """When the record's call can no longer land."""
    assert record.settle_until is not None
    return record.settle_until


def stored(text: str | None) -> Any:
    """A value that some row keeps as text, and must keep."""
    assert text is not None
    return canonical.loads(text)


def lease(run: Run) -> Lease:
    return Lease.objects.get(run_id=run.id)


def log(run: Run) -> list[Event]:
    return list(Event.objects.filter(run_id=run.id).order_by("seq"))


def types(run: Run) -> list[str]:
    """What happened to the run, in order."""
    return [event.type for event in log(run)]


def record(run: Run, operation: str = "") -> IdempotencyRecord:
    """The record of the run's outside action, or of the one named."""
    records = IdempotencyRecord.objects.filter(run_id=run.id)
    return records.get(operation=operation) if operation else records.get()


def sends(sandbox: Sandbox, run: Run, **filters: Any) -> list[dict[str, Any]]:
    """Every request of the run that would change something outside."""
    return sandbox.ledger(method="POST", run=str(run.id), **filters)


def applied(sandbox: Sandbox, run: Run, **filters: Any) -> list[int]:
    """For each of these requests whether it took effect."""
    return [entry["applied"] for entry in sends(sandbox, run, **filters)]


def clock() -> datetime:
    """The database's time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        at: datetime = cursor.fetchone()[0]
        return at


def approve(approval: Approval, person: User) -> Decision:
    """Approve exactly what stands in the request."""
    return _decide(approval, person, "approve", "")


def reject(approval: Approval, person: User, reason: str = "not this one") -> Decision:
    return _decide(approval, person, "reject", reason)


def _decide(approval: Approval, person: User, choice: str, reason: str) -> Decision:
    return decisions.decide(
        approval.id,
        person=person,
        choice=choice,
        reason=reason,
        version=approval.version,
        digest=approval.digest,
        surface="web",
    )
