"""Commands about outside actions whose outcome nobody knows: what a person found out."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from durable import canonical, gate, inbox, reasons, sql
from durable.canonical import JSON
from durable.errors import InvalidValue, NotUnknown, RecordNotFound, TooEarly
from durable.models import IdempotencyRecord, Run
from durable.statuses import EventType, RecordStatus

# One statement after the lock: the clock that binds the executor binds a person too.
LOCK = """
SELECT status, settle_until, clock_timestamp() FROM durable_idempotencyrecord
WHERE operation_id = %s FOR NO KEY UPDATE
"""


def _find(operation_id: UUID, tenant: str | None) -> IdempotencyRecord:
    records = IdempotencyRecord.objects.filter(operation_id=operation_id)
    record = (records.filter(tenant=tenant) if tenant else records).first()
    if record is None:
        raise RecordNotFound
    return record


def _lock_unknown(operation_id: UUID) -> tuple[datetime, datetime]:
    """Lock the record; returns when its first call can no longer land, and the time now."""
    status, settle_until, now = sql.rows(LOCK, operation_id)[0]
    if status != RecordStatus.UNKNOWN:
        raise NotUnknown
    return settle_until, now


@transaction.atomic
def resolve_happened(
    operation_id: UUID,
    *,
    resource_id: str,
    result: JSON = None,
    actor: str,
    reason: str,
    tenant: str | None = None,
) -> None:
    """Record that the action happened; the run goes on with `result`, and nothing is sent.

    `resource_id` is the outside service's id; without a `result` the workflow gets
    {"id": resource_id}. Raises RecordNotFound, NotUnknown, InvalidValue.
    """
    reasons.check(reason)
    canonical.check_text(resource_id, "resource_id")
    if not resource_id.strip():
        raise InvalidValue("must not be empty", path="resource_id")
    value = {"id": resource_id} if result is None else result
    text = canonical.dumps_result(value, path="result")
    record = _find(operation_id, tenant)
    _lock_unknown(operation_id)
    # The time-out that made it unknown is not its answer.
    answer = {"response": text, "error": None, "external_resource_id": resource_id}
    _settle(record, RecordStatus.SUCCEEDED, **answer)
    _tell(
        record,
        actor,
        outcome="happened",
        resource=resource_id,
        result=canonical.loads(text),
        reason=reason,
    )


@transaction.atomic
def resolve_not_happened(
    operation_id: UUID, *, actor: str, reason: str, tenant: str | None = None
) -> None:
    """Record that the action did not happen; the run tries it again under the same key.

    Refused until the first call can no longer land. Raises RecordNotFound, NotUnknown, TooEarly
    (with `until`), InvalidValue.
    """
    reasons.check(reason)
    record = _find(operation_id, tenant)
    settle_until, now = _lock_unknown(operation_id)
    if settle_until > now:
        raise TooEarly(until=settle_until)
    _settle(record, RecordStatus.FAILED)
    _tell(record, actor, outcome="not_happened", reason=reason)


@transaction.atomic
def ask_outside(operation_id: UUID, *, actor: str, tenant: str | None = None) -> None:
    """Ask the run's executor to ask the outside service again; the answer is on the timeline.

    Raises RecordNotFound, NotUnknown.
    """
    record = _find(operation_id, tenant)
    if record.status != RecordStatus.UNKNOWN:
        raise NotUnknown
    inbox.put(
        record.run_id,
        EventType.EXTERNAL_RECONCILE_REQUESTED,
        actor=actor,
        task_key=record.task_key,
        payload={"operation_id": str(operation_id)},
    )


def _settle(record: IdempotencyRecord, status: RecordStatus, **fields: str | None) -> None:
    """Move the record, and its permit with it; wake who waits for the same key."""
    moved = IdempotencyRecord.objects.filter(
        operation_id=record.operation_id, status=RecordStatus.UNKNOWN
    ).update(status=status, settled_at=Now(), **fields)
    if not moved:
        raise NotUnknown
    guard = gate.current()
    if guard is not None:
        happened = status == RecordStatus.SUCCEEDED
        permit = guard.settle(record.operation_id, "succeeded" if happened else "failed")
        sql.rows(permit.sql, *permit.params)
    for run in Run.objects.filter(waiting_on=record.operation_id):
        transaction.on_commit(partial(inbox.poke, run.id), robust=True)


def _tell(record: IdempotencyRecord, actor: str, **payload: JSON) -> None:
    inbox.put(
        record.run_id,
        EventType.EXTERNAL_RESOLVED,
        actor=actor,
        task_key=record.task_key,
        payload={"operation_id": str(record.operation_id), **payload},
    )
