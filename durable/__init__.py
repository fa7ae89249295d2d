"""Durable runs for Django: write workflows in plain Python, survive crashes, ask people.

This is the authoring API. Commands from outside are in `durable.runs` and `durable.effects`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from durable.retry import Retry as Retry

if TYPE_CHECKING:
    from durable.authoring import Effect as Effect
    from durable.authoring import Handle as Handle
    from durable.authoring import Task as Task
    from durable.authoring import Workflow as Workflow
    from durable.authoring import effect as effect
    from durable.authoring import gather as gather
    from durable.authoring import interrupt as interrupt
    from durable.authoring import now as now
    from durable.authoring import random as random
    from durable.authoring import record_event as record_event
    from durable.authoring import run_info as run_info
    from durable.authoring import sleep as sleep
    from durable.authoring import task as task
    from durable.authoring import uuid as uuid
    from durable.authoring import workflow as workflow
    from durable.errors import ApprovalExpired as ApprovalExpired
    from durable.errors import ApprovalRejected as ApprovalRejected
    from durable.errors import Failure as Failure
    from durable.errors import InterruptExpired as InterruptExpired
    from durable.errors import InvalidValue as InvalidValue
    from durable.errors import KeyCompensated as KeyCompensated
    from durable.errors import KeyReused as KeyReused
    from durable.errors import Misplaced as Misplaced
    from durable.errors import OutsideRun as OutsideRun
    from durable.errors import Retryable as Retryable
    from durable.idempotency import Call as Call
    from durable.reconciliation import Happened as Happened
    from durable.reconciliation import NotFound as NotFound
    from durable.reconciliation import StillUnknown as StillUnknown

# Found when asked for: Django imports this package before its models may be.
_HOMES = {
    "durable.authoring": "Effect Handle Task Workflow effect gather interrupt now random"
    " record_event run_info sleep task uuid workflow",
    "durable.errors": "ApprovalExpired ApprovalRejected Failure InterruptExpired InvalidValue"
    " KeyCompensated KeyReused Misplaced OutsideRun Retryable",
    "durable.idempotency": "Call",
    "durable.reconciliation": "Happened NotFound StillUnknown",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'durable' has no attribute {name!r}")
    return getattr(import_module(home), name)
