"""What the engine asks before an effect starts: `durable.gate.Gate`, answered from approvals.

The engine computes the action, this gate computes the digest from it, and only the statement of
`Allowed`, run in the transaction that starts the effect, uses an approval.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from approvals import binding, policies
from approvals.binding import Binding
from approvals.errors import InvalidPolicy
from approvals.policies import Terms
from approvals.statuses import ApprovalStatus, PermitStatus
from durable.canonical import JSON
from durable.errors import ApprovalExpired, ApprovalRejected, NotApproved
from durable.gate import Action, Allowed, Ask, Outcome, Pending, Refused, Statement, Verdict
from durable.models import uuid7

LOOK = "SELECT * FROM approvals_look_v1(%s::uuid, %s::text, %s::text)"
# The epoch is that of the lease, which the engine's transaction holds by now.
RESERVE = """
SELECT approvals_reserve_v1(
    %s::uuid, %s::int, %s::text, %s::uuid,
    (SELECT epoch FROM durable_lease WHERE run_id = %s::uuid))
"""
REQUEST = """
SELECT approvals_request_v1(
    %s::uuid, %s::text, %s::uuid, %s::uuid, %s::text, %s::text, %s::text, %s::text, %s::text,
    %s::text, %s::text, %s::text, %s::text, %s::text, %s::text, %s::jsonb, %s::text,
    %s::timestamptz)
"""
SETTLE = "SELECT approvals_settle_v1(%s::uuid, %s::text)"
CLOSE = "SELECT approvals_close_v1(%s::uuid)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The newest request for this action, as `approvals_look_v1` returned it."""

    id: UUID
    binding: Binding
    version: int
    digest: str
    terms: Terms
    status: ApprovalStatus
    decide_by: datetime
    decided_at: datetime | None
    permit_status: PermitStatus | None
    decided_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The action about to be sent, with its digest and today's terms."""

    action: Action
    binding: Binding
    digest: str
    terms: Terms


class ApprovalGate:
    """Lets an effect start only under a valid approval of exactly what it sends."""

    def lookup(self, action: Action) -> Statement | None:
        """Find the newest request; None when no policy in force asks for anyone."""
        if policies.asking(action.effect, action.parameters) is None:
            return None
        return Statement(sql=LOOK, params=(action.run_id, action.operation, action.key))

    def judge(self, action: Action, rows: Sequence[Mapping[str, Any]]) -> Verdict:
        """Decide from the one row of `lookup`. Raises NotApproved for a row it cannot trust."""
        terms = policies.asking(action.effect, action.parameters)
        if terms is None:
            # `lookup` asked and now nothing asks: a condition that is no function of its input.
            raise NotApproved("The policies do not agree with themselves about this action.")
        bound = binding.of_action(action)
        proposal = Proposal(action=action, binding=bound, digest=bound.digest, terms=terms)
        if len(rows) != 1:
            raise NotApproved(f"The database gave {len(rows)} answers about one approval.")
        found, at = _read(rows[0])
        if found is None:
            return _ask(proposal, at)
        return _judge(proposal, found, at)

    def settle(self, operation_id: UUID, outcome: Outcome) -> Statement:
        """Consume the permit of what happened, release that of what did not."""
        return Statement(sql=SETTLE, params=(operation_id, outcome))

    def close(self, run_id: UUID) -> Statement:
        """Void what nobody decided or used: the run ends or is being cancelled."""
        return Statement(sql=CLOSE, params=(run_id,))


def _judge(proposal: Proposal, found: Found, at: datetime) -> Verdict:
    same = found.digest == proposal.digest and found.binding == proposal.binding
    match found.status:
        case ApprovalStatus.PENDING if same and found.terms.cover(proposal.terms):
            return Pending(approval_id=found.id, decide_by=found.decide_by)
        case ApprovalStatus.APPROVED if found.permit_status in (
            PermitStatus.RESERVED,
            PermitStatus.CONSUMED,
        ):
            raise NotApproved("The approval of this action is already used.")
        case ApprovalStatus.APPROVED if same and found.terms.cover(proposal.terms):
            return _allowed(found)
        case ApprovalStatus.REJECTED if same:
            return Refused(approval_id=found.id, error=_rejected(found))
        case ApprovalStatus.EXPIRED if same and found.decided_at is None:
            return Refused(approval_id=found.id, error=ApprovalExpired())
        case _:
            # Another action than the one asked about, stricter terms, or an answer that is no
            # longer in force: never allowed or refused by the old request.
            return _ask(proposal, at, instead_of=found)


def _rejected(found: Found) -> ApprovalRejected:
    message = f"Rejected by {found.decided_by}" + (f": {found.reason}" if found.reason else "")
    return ApprovalRejected(message, by=found.decided_by, reason=found.reason)


def _allowed(found: Found) -> Allowed:
    bound = found.binding
    return Allowed(
        statement=Statement(
            sql=RESERVE,
            params=(found.id, found.version, found.digest, bound.operation_id, bound.run),
        ),
        approval_version=found.version,
    )


def _ask(proposal: Proposal, at: datetime, *, instead_of: Found | None = None) -> Ask:
    action, bound, terms = proposal.action, proposal.binding, proposal.terms
    approval_id = uuid7()
    decide_by = at + terms.decide_within
    facts: dict[str, JSON] = {
        "approval": str(approval_id),
        "operation_id": str(bound.operation_id),
        "title": action.title,
        "digest": proposal.digest,
        "policy": terms.name,
        "decide_by": decide_by.astimezone(UTC).isoformat(),
    }
    if instead_of is not None:
        facts["instead_of"] = str(instead_of.id)
        facts["changed"] = _changes(proposal, instead_of)
    statement = Statement(
        sql=REQUEST,
        params=(
            approval_id,
            *(bound.tenant, bound.run, bound.operation_id, action.workflow, action.task_key),
            *(bound.action, bound.operation, bound.key, bound.target, bound.amount, action.title),
            *(bound.parameters, proposal.digest, terms.name),
            json.dumps(policies.snapshot(terms)),
            action.requested_by,
            decide_by,
        ),
    )
    return Ask(
        statement=statement,
        approval_id=approval_id,
        decide_by=decide_by,
        facts=facts,
        instead_of=instead_of.id if instead_of is not None else None,
    )


def _changes(proposal: Proposal, found: Found) -> list[str]:
    """What is new since the older request, for people and the run's log."""
    changed = binding.changes(found.binding, proposal.binding)
    return changed if found.terms.cover(proposal.terms) else [*changed, "policy"]


def _read(row: Mapping[str, Any]) -> tuple[Found | None, datetime]:
    """Take apart what `approvals_look_v1` returned; anything odd is not an approval."""
    try:
        at = _typed(row["at"], datetime)
        return (None if row["id"] is None else _found(row)), at
    except (KeyError, TypeError, ValueError, InvalidPolicy) as error:
        raise NotApproved(f"The stored approval cannot be read: {error}") from error


def _found(row: Mapping[str, Any]) -> Found:
    names = ("tenant", "operation", "key", "action", "target", "amount", "parameters")
    bound = Binding(
        run=_typed(row["run_id"], UUID),
        operation_id=_typed(row["operation_id"], UUID),
        **{name: _typed(row[name], str) for name in names},
    )
    status = ApprovalStatus(row["status"])
    decided = status in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED)
    return Found(
        id=_typed(row["id"], UUID),
        binding=bound,
        version=_typed(row["version"], int),
        digest=_typed(row["digest"], str),
        terms=policies.read(json.loads(row["policy_snapshot"])),
        status=status,
        decide_by=_typed(row["decide_by"], datetime),
        decided_at=_typed(row["decided_at"], datetime, optional=not decided),
        permit_status=None if row["permit_status"] is None else PermitStatus(row["permit_status"]),
        decided_by=_typed(row["decided_by"], str, optional=not decided) or "",
        reason=_typed(row["reason"], str, optional=not decided) or "",
    )


def _typed(value: Any, kind: type, *, optional: bool = False) -> Any:
    """Return the value if it is of its kind; TypeError otherwise."""
    if isinstance(value, kind) or (optional and value is None):
        return value
    raise TypeError(f"{kind.__name__} expected")
