"""Who was asked to allow which exact action, what they said, and the permit that follows."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from approvals.statuses import ApprovalStatus, Choice, PermitStatus


def _choices(enum: type) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]  # type: ignore[attr-defined]


class Approval(models.Model):
    """One request to let one exact action happen."""

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.TextField()
    run = models.ForeignKey("durable.Run", on_delete=models.PROTECT, related_name="approvals")
    workflow = models.TextField(default="")
    task_key = models.TextField(default="")  # where in the run the action stands
    operation_id = models.UUIDField()  # the idempotency record
    version = models.IntegerField(default=1)  # counts the requests for one operation
    action = models.TextField()  # the effect's name
    operation = models.TextField()
    key = models.TextField()
    target = models.TextField(default="")
    amount = models.TextField(default="")
    title = models.TextField()  # built by our template from the bound parameters
    parameters = models.TextField()  # canonical JSON: exactly what will be sent
    digest = models.TextField()  # of `binding.Binding`
    policy = models.TextField()  # the names of the policies that asked
    policy_snapshot = models.JSONField()  # of `policies.Terms`
    requested_by = models.TextField()  # who started the run
    status = models.TextField(choices=_choices(ApprovalStatus), default=ApprovalStatus.PENDING)
    requested_at = models.DateTimeField(db_default=Now())
    decide_by = models.DateTimeField()
    valid_until = models.DateTimeField(null=True)  # set when approved
    decided_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)
        permissions: ClassVar = [("decide_approval", "Can approve or reject actions")]
        indexes: ClassVar = [
            # The inbox: what is pending, most urgent first.
            models.Index(
                fields=["tenant", "decide_by", "id"],
                name="approval_pending",
                condition=Q(status=ApprovalStatus.PENDING),
            ),
            # What a person asked for and others have to decide.
            models.Index(
                fields=["tenant", "requested_by", "decide_by"],
                name="approval_asked_by",
                condition=Q(status=ApprovalStatus.PENDING),
            ),
            models.Index(fields=["tenant", "-requested_at", "-id"], name="approval_newest"),
            # The sweep: whose time to decide is over, in every tenant.
            models.Index(
                fields=["decide_by"],
                name="approval_due",
                condition=Q(status=ApprovalStatus.PENDING),
            ),
            # What the gate looks for before an action starts.
            models.Index(fields=["run", "operation", "key"], name="approval_of_action"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["operation_id", "version"], name="approval_version_once"
            ),
            # At most one request is open for one operation.
            models.UniqueConstraint(
                fields=["operation_id"],
                name="approval_open_once",
                condition=Q(status__in=[ApprovalStatus.PENDING, ApprovalStatus.APPROVED]),
            ),
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in ApprovalStatus]),
                name="approval_status_known",
            ),
            models.CheckConstraint(
                condition=~Q(status=ApprovalStatus.APPROVED) | Q(valid_until__isnull=False),
                name="approval_approved_has_end",
            ),
        ]

    def __str__(self) -> str:
        return self.title


class Decision(models.Model):
    """One person's vote on one version of an approval. Append-only."""

    id = models.BigAutoField(primary_key=True)
    approval = models.ForeignKey(Approval, on_delete=models.PROTECT, related_name="decisions")
    version = models.IntegerField()
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True)
    actor = models.TextField()
    choice = models.TextField(choices=_choices(Choice))
    reason = models.TextField(default="")
    digest = models.TextField()  # what the person saw
    surface = models.TextField()  # web, api
    at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["approval", "version", "person"], name="decision_once_per_person"
            ),
            models.CheckConstraint(
                condition=Q(choice__in=[c.value for c in Choice]), name="decision_choice_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.choice} by {self.actor}"


class Refusal(models.Model):
    """A try to decide that was refused: too late, not allowed, changed meanwhile. Append-only."""

    id = models.BigAutoField(primary_key=True)
    approval = models.ForeignKey(Approval, on_delete=models.PROTECT, related_name="refusals")
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True)
    actor = models.TextField()
    choice = models.TextField()  # as it was sent, made storable
    reason = models.TextField(default="")
    code = models.TextField()  # of the error in `approvals.errors`
    surface = models.TextField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["approval", "-id"], name="refusal_newest")]

    def __str__(self) -> str:
        return f"{self.code} for {self.actor}"


class Permit(models.Model):
    """The single use of an approval by one idempotency record."""

    approval = models.OneToOneField(Approval, primary_key=True, on_delete=models.PROTECT)
    version = models.IntegerField()
    operation_id = models.UUIDField()
    epoch = models.BigIntegerField()  # the lease under which it was reserved
    status = models.TextField(choices=_choices(PermitStatus))
    reserved_at = models.DateTimeField(db_default=Now())
    settled_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            # One record rides on one permit at a time.
            models.UniqueConstraint(
                fields=["operation_id"],
                name="permit_once_per_record",
                condition=~Q(status=PermitStatus.RELEASED),
            ),
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in PermitStatus]),
                name="permit_status_known",
            ),
        ]

    def __str__(self) -> str:
        return f"permit {self.status}"
