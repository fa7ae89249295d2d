"""The door between an effect and the outside: somebody may have to allow it first.

durable knows no approvals. It asks the gate that was registered; approvals registers one.
Every statement a gate hands over runs inside the engine's own transaction, after the run's lease
and the idempotency record are locked, and must raise its own SQLSTATE rather than match no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from durable.canonical import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """SQL for the engine to run in its own transaction."""

    sql: str
    params: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One outside action, as the executor is about to send it."""

    tenant: str
    run_id: UUID
    workflow: str
    effect: str  # the effect's name; a compensation is "<name>:undo"
    operation: str
    operation_id: UUID  # the idempotency record
    key: str
    generation: int
    task_key: str
    title: str
    target: str
    amount: str
    parameters: dict[str, JSON]  # every bound parameter, plain JSON
    requested_by: str  # the actor who started the run
    undo: Literal["reversible", "remedy", "manual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """It may start, if `statement` still finds it allowed in the transaction that starts it."""

    statement: Statement
    approval_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Somebody has to decide; `statement` stores the request in the transaction that parks."""

    statement: Statement
    approval_id: UUID
    decide_by: datetime
    facts: dict[str, JSON]  # for the event `approval.requested`
    instead_of: UUID | None = None  # the older request that this one replaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Somebody was asked and has not decided."""

    approval_id: UUID
    decide_by: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """It must not happen; `error` is what the workflow's body sees."""

    approval_id: UUID
    error: Exception


Verdict = Allowed | Ask | Pending | Refused
Outcome = Literal["succeeded", "failed", "unknown"]


class Gate(Protocol):
    """What the engine asks before, in and after the transaction that starts an effect."""

    def lookup(self, action: Action) -> Statement | None:
        """Return the statement whose rows `judge` needs; None when no policy asks for anyone."""

    def judge(self, action: Action, rows: Sequence[Mapping[str, Any]]) -> Verdict:
        """Decide from the rows of `lookup`. Anything odd or missing is not allowed."""

    def settle(self, operation_id: UUID, outcome: Outcome) -> Statement:
        """What to do with the permit when the outcome is stored, in the same transaction."""

    def close(self, run_id: UUID) -> Statement:
        """Void what nobody decided or used yet: the run ends or is being cancelled."""


_gates: list[Gate] = []


def register(gate: Gate) -> None:
    """Install the gate, replacing another one."""
    _gates[:] = [gate]


def current() -> Gate | None:
    """The registered gate. None: no installed app guards effects."""
    return _gates[0] if _gates else None
