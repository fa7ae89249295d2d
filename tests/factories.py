"""Rows for tests of pages and reads: believable, valid for every constraint, made in one line.

They write the tables directly, without a fence: never use them to test the engine itself.
"""

import hashlib
import uuid
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from approvals import binding
from approvals.models import Approval, Decision
from durable import canonical
from durable.models import (
    Checkpoint,
    Event,
    IdempotencyRecord,
    InboxItem,
    Interrupt,
    Lease,
    OutboxMessage,
    Run,
    Sweeper,
    uuid7,
)
from durable.statuses import FINAL_RUN_STATUSES

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def make_run(status="running", *, lease=None, **fields):
    """Create a run with its lease; `lease` gives fields of the lease."""
    now = timezone.now()
    given = {
        "workflow": "fulfil",
        "version": "1",
        "goal": "Fulfil order A-1001 for ACME GmbH",
        "input": canonical.dumps({"order_id": "A-1001"}),
        "input_digest": "0" * 64,
        "started_by": "user:oscar",
        "created_at": now - timedelta(minutes=5),
        "started_at": None if status == "pending" else now - timedelta(minutes=5),
        "ended_at": now if status in FINAL_RUN_STATUSES else None,
    }
    run = Run.objects.create(status=status, **{**given, **fields})
    make_lease(run, **(lease or {}))
    return run


def make_lease(run, **fields):
    """Create a run's lease; held, and good for 15 seconds, when the run is running."""
    held = run.status == "running"
    given = {
        "epoch": 0 if run.status == "pending" else 3,
        "owner": uuid.uuid4() if held else None,
        "expires_at": timezone.now() + timedelta(seconds=15) if held else None,
        "worker": "" if run.status == "pending" else "worker-1@host-a",
    }
    return Lease.objects.create(run=run, **{**given, **fields})


def make_event(run, type_, *, at=None, **fields):
    """Append one event to a run's log and move the head of its lease."""
    payload = fields.pop("payload", {})
    lease = Lease.objects.get(run=run)
    lease.last_seq += 1
    lease.save(update_fields=["last_seq"])
    return Event.objects.create(
        run_id=run.id,
        seq=lease.last_seq,
        type=type_,
        at=at or timezone.now(),
        epoch=fields.pop("epoch", lease.epoch),
        hash=hashlib.sha256(f"{run.id} {lease.last_seq}".encode()).digest(),
        payload=payload if isinstance(payload, str) else canonical.dumps(payload),
        **fields,
    )


def make_events(run, *events, start=None, step=timedelta(seconds=1)):
    """Append events given as (type, fields) or as a type, one step apart."""
    at = start or timezone.now() - step * len(events)
    made = []
    for index, event in enumerate(events):
        type_, fields = event if isinstance(event, tuple) else (event, {})
        made.append(make_event(run, type_, **{"at": at + step * index, **fields}))
    return made


def make_record(run, status="unknown", *, request=None, **fields):
    """Create the idempotency record of an outside action of a run."""
    now = timezone.now()
    request = {"order_id": "A-1001", "amount": "5210.00"} if request is None else request
    sent = status not in ("prepared", "void")
    text = canonical.dumps(request)
    given = {
        "tenant": run.tenant,
        "operation": "charge",
        "key": f"A-1001-{uuid.uuid4().hex[:6]}:charge",
        "task_key": "3",
        "proposed_request": text,
        "request_hash": canonical.digest("request", text) if sent else None,
        "sent_request": text if sent else None,
        "attempt": 1 if sent else 0,
        "epoch": 3 if sent else 0,
        "started_at": now - timedelta(minutes=2) if sent else None,
        "call_deadline": now - timedelta(seconds=100) if sent else None,
        "settle_until": now - timedelta(seconds=40) if sent else None,
    }
    return IdempotencyRecord.objects.create(run=run, status=status, **{**given, **fields})


PARAMETERS = {
    "order_id": "A-1001",
    "customer_id": "acme-gmbh",
    "amount": "5210.00",
    "currency": "USD",
}


def make_approval(run, status="pending", *, record=None, parameters=None, **fields):
    """Create a request for approval, bound as the executor binds it.

    For one that is approved or rejected, let `make_decision` say who did it.
    """
    now = timezone.now()
    record = record or make_record(run, "prepared")
    parameters = PARAMETERS if parameters is None else parameters
    text = canonical.dumps(parameters)
    given = {
        "id": uuid7(),
        "tenant": run.tenant,
        "action": record.operation,
        "operation": record.operation,
        "key": record.key,
        "target": "acme-gmbh",
        "amount": "5210.00 USD",
        "title": "Charge 5210.00 USD to customer acme-gmbh",
        "task_key": record.task_key,
        "policy": "large-charge",
        "policy_snapshot": {
            "policies": {"large-charge": 1},
            "votes": 1,
            "decide_within": 86400.0,
            "valid_for": 3600.0,
            "no_self_approval": True,
            "sentence": "Charges over 5,000 need one approver who did not request them",
        },
        "requested_by": run.started_by,
        "requested_at": now - timedelta(minutes=3),
        "decide_by": now + timedelta(hours=4),
    }
    approval = Approval(
        run=run,
        operation_id=record.operation_id,
        workflow=run.workflow,
        parameters=text,
        **{**given, **fields},
    )
    approval.digest = fields.get("digest") or binding.of_approval(approval).digest
    approval.save(force_insert=True)
    if status != "pending":
        approval.status = status
        approval.save(update_fields=["status"])
    return approval


def make_decision(approval, person, choice="reject", **fields):
    """Record a person's vote and move the approval, as `decide` would."""
    decision = Decision.objects.create(
        approval=approval,
        version=approval.version,
        person=person,
        actor=f"user:{person.get_username()}",
        choice=choice,
        digest=approval.digest,
        surface="web",
        **fields,
    )
    approval.status = "approved" if choice == "approve" else "rejected"
    approval.decided_at = timezone.now()
    approval.valid_until = timezone.now() + timedelta(hours=1) if choice == "approve" else None
    approval.save(update_fields=["status", "decided_at", "valid_until"])
    return decision


def make_interrupt(run, question="Which warehouse?", **fields):
    """Create an open question of a run."""
    return Interrupt.objects.create(
        run=run, question=question, **{"task_key": fields.pop("task_key", "5"), **fields}
    )


def make_inbox_item(run, type_="approval.decided", *, actor="user:alice", **fields):
    """Create a fact from outside that no worker has taken."""
    return InboxItem.objects.create(run_id=run.id, type=type_, actor=actor, **fields)


def make_message(run=None, status="pending", **fields):
    """Create an outbox message."""
    given = {
        "event_id": f"msg-{uuid.uuid4().hex}",
        "aggregate_id": str(run.id) if run else "none",
        "event_type": "mail.confirmation",
        "payload": "{}",
    }
    return OutboxMessage.objects.create(status=status, **{**given, **fields})


def make_checkpoint(run, seq, **fields):
    """Create a checkpoint of a run."""
    given = {"epoch": 3, "state": "{}", "digest": "c" * 64, "graph_version": "1"}
    return Checkpoint.objects.create(run_id=run.id, seq=seq, **{**given, **fields})


def make_sweep(seconds_ago=1.0, worker="worker-1@host-a"):
    """Say when a worker last looked for lost work."""
    swept_at = timezone.now() - timedelta(seconds=seconds_ago)
    return Sweeper.objects.update_or_create(id=1, defaults={"swept_at": swept_at, "worker": worker})
