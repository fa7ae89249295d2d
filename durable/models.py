"""The tables of the engine. Only durable writes them; most writes go through `journal` and the
PL/pgSQL functions of the migrations, under a run's fence."""

from __future__ import annotations

import time
import uuid
from enum import StrEnum
from secrets import token_bytes
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from durable import statuses


def uuid7() -> uuid.UUID:
    """A time-ordered UUID (RFC 9562, version 7): new rows go to the end of an index."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(token_bytes(10), "big")
    value = value & ~(0xF << 76) | (0x7 << 76)
    value = value & ~(0x3 << 62) | (0x2 << 62)
    return uuid.UUID(int=value)


def _choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


def _one_of(field: str, enum: type[StrEnum]) -> Q:
    return Q(**{f"{field}__in": [member.value for member in enum]})


class Run(models.Model):
    """One durable execution of a workflow. Its history is in Event, its ownership in Lease."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.TextField(default="default")
    workflow = models.TextField()
    version = models.TextField()
    schema_version = models.IntegerField(default=1)
    thread_id = models.TextField(null=True)
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="children")
    forked_from = models.ForeignKey(
        "self", null=True, on_delete=models.PROTECT, related_name="forks"
    )
    goal = models.TextField(default="")  # one line for people
    execution_date = models.DateTimeField(db_default=Now())  # fixed at start; workflows read it
    status = models.TextField(
        choices=_choices(statuses.RunStatus), default=statuses.RunStatus.PENDING
    )
    # Why it is blocked, or how it ended badly.
    code = models.TextField(default="")
    failure_class = models.TextField(default="")
    requires_operator = models.BooleanField(default=False)
    reason = models.TextField(default="")
    checkpoint_seq = models.BigIntegerField(null=True)
    # Canonical JSON as text: the only copy.
    input = models.TextField()
    output = models.TextField(null=True)
    error = models.TextField(null=True)
    queue = models.TextField(default="default")
    priority = models.IntegerField(default=0)
    labels = models.JSONField(default=dict)
    generation = models.IntegerField(default=1)
    start_key = models.TextField(null=True)
    input_digest = models.TextField()
    wake_at = models.DateTimeField(null=True)  # null: nothing is due
    waiting_for = models.TextField(
        choices=_choices(statuses.WaitingFor), default=statuses.WaitingFor.NOTHING, blank=True
    )
    waiting_on = models.UUIDField(null=True)  # another run's idempotency record
    deadline = models.DateTimeField(null=True)
    attempts = models.IntegerField(default=0)  # charged at claim, reset by progress
    claimed_seq = models.BigIntegerField(default=0)  # last_seq right after the last claim
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    started_by = models.TextField()

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("start_run", "Can start runs"),
            ("operate_run", "Can cancel, answer and repair runs"),
        ]
        indexes: ClassVar = [
            # The sweeper: what is due.
            models.Index(fields=["wake_at"], name="run_due", condition=Q(wake_at__isnull=False)),
            # The run list, newest first, whole and by status.
            models.Index(fields=["tenant", "-created_at", "-id"], name="run_newest"),
            models.Index(fields=["tenant", "status", "-created_at", "-id"], name="run_by_status"),
            # And by workflow, of which one may be rare among a million.
            models.Index(
                fields=["tenant", "workflow", "-created_at", "-id"], name="run_by_workflow"
            ),
            # Needs an operator.
            models.Index(
                fields=["tenant", "-created_at"],
                name="run_blocked",
                condition=Q(status=statuses.RunStatus.BLOCKED),
            ),
            models.Index(
                fields=["thread_id"], name="run_thread", condition=Q(thread_id__isnull=False)
            ),
            # A record settled: who waits for it?
            models.Index(
                fields=["waiting_on"],
                name="run_waiting_on",
                condition=Q(waiting_on__isnull=False),
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                # The key first: people search by it.
                fields=["start_key", "workflow", "tenant"],
                name="run_start_key_once",
                condition=Q(start_key__isnull=False),
            ),
            models.CheckConstraint(
                condition=_one_of("status", statuses.RunStatus), name="run_status_known"
            ),
            # Nothing is ever due for a run that has ended.
            models.CheckConstraint(
                condition=~Q(status__in=[s.value for s in statuses.FINAL_RUN_STATUSES])
                | Q(wake_at__isnull=True, ended_at__isnull=False),
                name="run_final_is_at_rest",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workflow} {self.id}"

    @property
    def is_final(self) -> bool:
        return self.status in statuses.FINAL_RUN_STATUSES


class Lease(models.Model):
    """Who may write to a run's log, and the head of that log. One narrow row per run."""

    run = models.OneToOneField(Run, primary_key=True, on_delete=models.PROTECT)
    epoch = models.BigIntegerField(default=0)
    last_seq = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True)
    owner = models.UUIDField(null=True)  # a fresh one per claim
    cancel_requested = models.BooleanField(default=False)
    phase = models.TextField(choices=_choices(statuses.Phase), default=statuses.Phase.FORWARD)
    head_hash = models.BinaryField(default=b"")
    worker = models.TextField(default="")
    activity = models.TextField(default="")  # what a long task is doing now

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            # The sweeper: held leases; an index on expires_at would end HOT updates.
            models.Index(fields=["run"], name="lease_held", condition=Q(owner__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"lease of {self.run_id}"


class Event(models.Model):
    """One fact in a run's log. Append-only, numbered without gaps, hash-chained.

    No foreign key in the database: a stranger's lock on the run must not hold up its log.
    """

    pk = models.CompositePrimaryKey("run_id", "seq")
    run_id = models.UUIDField()
    seq = models.BigIntegerField()
    epoch = models.BigIntegerField()
    at = models.DateTimeField()
    hash = models.BinaryField()
    type = models.TextField(choices=_choices(statuses.EventType))
    node = models.TextField(default="")
    task_key = models.TextField(default="")
    actor = models.TextField(default="")  # empty: the executor
    payload = models.TextField(default="{}")  # canonical JSON, the only copy

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.seq} {self.type}"

    @property
    def event_id(self) -> str:
        return f"evt_{self.run_id}_{self.seq}"


class Checkpoint(models.Model):
    """The state of a run at a boundary from which it can go on."""

    pk = models.CompositePrimaryKey("run_id", "seq")
    run_id = models.UUIDField()
    seq = models.BigIntegerField()
    parent_seq = models.BigIntegerField(null=True)
    super_step = models.IntegerField(default=0)
    epoch = models.BigIntegerField()
    kind = models.TextField(choices=[("full", "full"), ("delta", "delta")], default="full")
    state = models.TextField()  # canonical JSON
    digest = models.TextField()
    next_nodes = models.JSONField(default=list)
    completed = models.JSONField(default=list)
    schema_version = models.IntegerField(default=1)
    graph_version = models.TextField()
    metadata = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"checkpoint {self.run_id}@{self.seq}"

    @property
    def checkpoint_id(self) -> str:
        return f"ckpt_{self.run_id}_{self.seq}"


class IdempotencyRecord(models.Model):
    """What is known about one outside action: the guard between a crash and doing it twice."""

    operation_id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.TextField()
    operation = models.TextField()  # the effect's name; a compensation is "<name>:undo"
    key = models.TextField()
    generation = models.IntegerField(default=1)
    status = models.TextField(choices=_choices(statuses.RecordStatus))
    request_hash = models.TextField(null=True)  # binds at the first `running`
    proposed_request = models.TextField()  # canonical JSON
    sent_request = models.TextField(null=True)
    response = models.TextField(null=True)
    error = models.TextField(null=True)
    external_resource_id = models.TextField(null=True)
    attempt = models.IntegerField(default=0)
    call_deadline = models.DateTimeField(null=True)
    settle_until = models.DateTimeField(null=True)  # before it, "not found" is still unknown
    deduplicates = models.BooleanField(default=False)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="records")
    task_key = models.TextField()
    epoch = models.BigIntegerField(default=0)
    approval_version = models.IntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)  # the latest attempt
    settled_at = models.DateTimeField(null=True)
    keep_until = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["run", "task_key"], name="record_of_run"),
            models.Index(
                fields=["tenant", "started_at"],
                name="record_unknown",
                condition=Q(status="unknown"),
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                # The key first: people search by it.
                fields=["key", "operation", "tenant", "generation"],
                name="record_key_once",
                condition=~Q(status="void"),
            ),
            models.CheckConstraint(
                condition=_one_of("status", statuses.RecordStatus), name="record_status_known"
            ),
            # Intent first: nothing is sent without hash, deadline and epoch on disk.
            models.CheckConstraint(
                condition=Q(status__in=["prepared", "void"])
                | Q(request_hash__isnull=False, call_deadline__isnull=False, epoch__gt=0),
                name="record_sent_is_bound",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.operation} {self.key}"


class Interrupt(models.Model):
    """A question to a person in the middle of a run."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="interrupts")
    task_key = models.TextField()
    question = models.TextField()
    schema = models.TextField(null=True)  # JSON Schema as canonical JSON
    status = models.TextField(
        choices=_choices(statuses.InterruptStatus), default=statuses.InterruptStatus.OPEN
    )
    answer = models.TextField(null=True)  # canonical JSON
    answered_by = models.TextField(default="")
    answered_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            # The few that are open, among all that were ever asked.
            models.Index(fields=["created_at"], name="interrupt_open", condition=Q(status="open")),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "task_key"], name="interrupt_once_per_call"),
            models.CheckConstraint(
                condition=_one_of("status", statuses.InterruptStatus),
                name="interrupt_status_known",
            ),
        ]

    def __str__(self) -> str:
        return self.question


class InboxItem(models.Model):
    """A fact from outside, waiting to be moved into a run's log by its executor.

    Inserted in the caller's transaction, so nobody's long transaction holds a lease row.
    `moved_seq` is the log number it got; 0 means that the run had already ended.
    """

    id = models.BigAutoField(primary_key=True)
    run_id = models.UUIDField()
    type = models.TextField(choices=_choices(statuses.EventType))
    task_key = models.TextField(default="")
    actor = models.TextField()
    payload = models.TextField(default="{}")  # canonical JSON
    received_at = models.DateTimeField(db_default=Now())
    moved_seq = models.BigIntegerField(null=True)

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(
                fields=["run_id", "id"],
                name="inbox_received",
                condition=Q(moved_seq__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} for {self.run_id}"


class Evidence(models.Model):
    """What an executor that had lost its lease still learned. Never an outcome by itself."""

    id = models.BigAutoField(primary_key=True)
    run_id = models.UUIDField()
    operation_id = models.UUIDField(null=True)
    task_key = models.TextField(default="")
    epoch = models.BigIntegerField()
    kind = models.TextField()  # response, error, result
    payload = models.TextField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["run_id", "id"], name="evidence_of_run")]

    def __str__(self) -> str:
        return f"{self.kind} of epoch {self.epoch}"


class OutboxMessage(models.Model):
    """A message to the outside, stored beside the change that caused it."""

    id = models.BigAutoField(primary_key=True)
    event_id = models.TextField(unique=True)
    aggregate_id = models.TextField()
    event_type = models.TextField()
    payload = models.TextField()  # canonical JSON
    status = models.TextField(
        choices=_choices(statuses.MessageStatus), default=statuses.MessageStatus.PENDING
    )
    attempts = models.IntegerField(default=0)
    next_at = models.DateTimeField(db_default=Now())
    claim = models.UUIDField(null=True)  # the relay that is sending it
    last_error = models.TextField(default="")
    created_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)
        indexes: ClassVar = [
            models.Index(
                fields=["next_at"],
                name="outbox_due",
                condition=Q(status__in=["pending", "sending"]),
            ),
            # The few that were given up, among all that were ever sent.
            models.Index(fields=["id"], name="outbox_dead", condition=Q(status="dead")),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=_one_of("status", statuses.MessageStatus), name="outbox_status_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} {self.event_id}"


class ConsumedMessage(models.Model):
    """A message that a consumer has handled: `outbox.once` inserts it with the handling."""

    consumer = models.TextField()
    event_id = models.TextField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["consumer", "event_id"], name="consumed_once"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer} {self.event_id}"


class Sweeper(models.Model):
    """One row: which worker sweeps now, and when it last finished."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    owner = models.UUIDField(null=True)
    worker = models.TextField(default="")
    expires_at = models.DateTimeField(null=True)
    swept_at = models.DateTimeField(null=True)
    found = models.JSONField(default=dict)

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(id=1), name="sweeper_is_one"),
        ]

    def __str__(self) -> str:
        return self.worker
