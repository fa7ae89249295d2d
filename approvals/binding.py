"""What an approval is bound to: exactly one action with exactly these parameters.

Pure. The executor computes the digest from what it is about to send, the request stores it, the
person's page sends it back, and the permit compares it once more. One differing byte is another
action.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from uuid import UUID

from durable import canonical
from durable.canonical import JSON

if TYPE_CHECKING:
    from approvals.models import Approval
    from durable.gate import Action

# Part of every digest: another frame needs another name, so that no old digest fits a new frame.
FRAME = "approval/v1"
# The parameters are already bounded; the frame only adds names and a level of quoting.
_FRAME_BYTES = 8 * canonical.MAX_BYTES
# Enough for a person to see what changed, small in the run's log.
MOST_CHANGES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Every fact that the digest covers. `parameters` is their canonical JSON text."""

    tenant: str
    run: UUID
    operation_id: UUID
    operation: str
    key: str
    action: str
    target: str
    amount: str
    parameters: str

    @property
    def digest(self) -> str:
        """SHA-256 in hex over the canonical frame of all fields."""
        frame = {field.name: getattr(self, field.name) for field in fields(self)}
        frame |= {"run": str(self.run), "operation_id": str(self.operation_id)}
        return canonical.digest(FRAME, canonical.dumps(frame, max_bytes=_FRAME_BYTES))


def of_action(action: Action) -> Binding:
    """Bind what an executor is about to send. Raises InvalidValue if it is not JSON."""
    return Binding(
        tenant=action.tenant,
        run=action.run_id,
        operation_id=action.operation_id,
        operation=action.operation,
        key=action.key,
        action=action.effect,
        target=action.target,
        amount=action.amount,
        parameters=canonical.dumps(action.parameters, path="parameters"),
    )


def of_approval(approval: Approval) -> Binding:
    """Bind what a request shows, so that it can be compared with the digest it carries."""
    return Binding(
        tenant=approval.tenant,
        run=approval.run_id,
        operation_id=approval.operation_id,
        operation=approval.operation,
        key=approval.key,
        action=approval.action,
        target=approval.target,
        amount=approval.amount,
        parameters=approval.parameters,
    )


def difference(old_params: JSON, new_params: JSON) -> list[str]:
    """Name the paths at which two values differ: `amount`, `lines[0].price`, ..."""
    return _difference(old_params, new_params, "")[:MOST_CHANGES]


def _difference(old: JSON, new: JSON, path: str) -> list[str]:
    if type(old) is not type(new) or not isinstance(old, (dict, list)):
        # As canonical text: in Python 1 == True, in JSON they differ.
        return [] if canonical.dumps(old) == canonical.dumps(new) else [path or "value"]
    before, after = _members(old, path), _members(new, path)
    changed: list[str] = []
    for step in {**before, **after}:
        if step in before and step in after:
            changed += _difference(before[step], after[step], step)
        else:  # missing is not null
            changed.append(step)
    return changed


def _members(value: JSON, path: str) -> dict[str, JSON]:
    if isinstance(value, list):
        return {f"{path}[{index}]": item for index, item in enumerate(value)}
    return {f"{path}.{name}" if path else name: item for name, item in sorted(value.items())}


def changes(old: Binding, new: Binding) -> list[str]:
    """Name what differs between two bindings: `target`, `parameters.lines[0].price`, ..."""
    if old.parameters == new.parameters:
        parameters = []
    else:
        parameters = difference(
            {"parameters": canonical.loads(old.parameters)},
            {"parameters": canonical.loads(new.parameters)},
        )
    named = [field.name for field in fields(old) if field.name != "parameters"]
    return [name for name in named if getattr(old, name) != getattr(new, name)] + parameters
