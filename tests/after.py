"""What must hold after every scenario, whatever happened in it: `after_checks`.

Each check recomputes what it claims: the hash chain in Python, the intents from the sandbox's
ledger. A test calls it last, when its runs are at rest.
"""

import hashlib
import re
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import psycopg
from django.db import DatabaseError, connection, transaction

from approvals.models import Approval, Decision, Permit
from durable import conf
from durable.models import Event, IdempotencyRecord, InboxItem, Interrupt, Lease, Run
from tests.sandbox_fixture import Sandbox

NOBODY = UUID(int=0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FINAL = {"succeeded": "run.succeeded", "failed": "run.failed", "cancelled": "run.cancelled"}
# A run between two statements of its executor; longer than this is a transaction left open.
OPEN_TRANSACTION_SECONDS = 1.0


class Logged(Protocol):
    """Whatever ran in the scenario and wrote a log."""

    name: str

    def log(self) -> str: ...


def after_checks(
    sandbox: Sandbox | None = None,
    workers: Sequence[Logged] | None = None,
    *,
    injected: Iterable[str] = (),
) -> None:
    """Check every run, record, approval and outside call there is.

    `sandbox`: also check its ledger against the intents in the logs. `workers`: the processes that
    should have brought every run to rest; without them nothing is said about liveness. `injected`:
    regular expressions of tracebacks that the scenario itself provoked.
    """
    logs = _logs()
    for run in Run.objects.all():
        _check_log(run, logs.get(run.id, []))
        _check_ending(run, logs.get(run.id, []))
        _check_cancel(run, logs.get(run.id, []))
    assert set(logs) <= {run.id for run in Run.objects.all()}, "a log without a run"
    _check_append_only()
    _check_records()
    _check_approvals()
    if sandbox is not None:
        _check_ledger(sandbox, logs)
    if workers is not None:
        _check_rest()
        _check_tracebacks(workers, tuple(injected))
    _check_sessions()


# The logs -------------------------------------------------------------------------------------


def _logs() -> dict[Any, list[Event]]:
    logs: dict[Any, list[Event]] = defaultdict(list)
    for event in Event.objects.order_by("run_id", "seq"):
        logs[event.run_id].append(event)
    return logs


def _sized(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw


def frame_hash(previous: bytes, event: Event) -> bytes:
    """The hash that an event must have after `previous`: the frame, written down once more."""
    microseconds = (event.at - EPOCH) // timedelta(microseconds=1)
    return hashlib.sha256(
        b"\x01"
        + struct.pack(">i", len(previous))
        + previous
        + event.run_id.bytes
        + struct.pack(">qqq", event.seq, event.epoch, microseconds)
        + _sized(event.type)
        + _sized(event.node)
        + _sized(event.task_key)
        + _sized(event.actor)
        + hashlib.sha256(event.payload.encode()).digest()
    ).digest()


def _check_log(run: Run, log: list[Event]) -> None:
    """Numbers without gaps, epochs that never fall, and a chain that ends at the lease's head."""
    assert [event.seq for event in log] == list(range(1, len(log) + 1)), f"{run}: gaps in the log"
    epochs = [event.epoch for event in log]
    assert epochs == sorted(epochs), f"{run}: an older epoch wrote after a newer one: {epochs}"
    previous = b""
    for event in log:
        expected = frame_hash(previous, event)
        assert bytes(event.hash) == expected, f"{run}: event {event.seq} breaks the chain"
        previous = expected
    lease = Lease.objects.get(run=run)
    assert (lease.last_seq, bytes(lease.head_hash)) == (len(log), previous), f"{run}: another head"
    acquired = [event.epoch for event in log if event.type == "lease.acquired"]
    assert acquired == list(range(1, lease.epoch + 1)), f"{run}: claims {acquired}"


def _check_ending(run: Run, log: list[Event]) -> None:
    """A final run has one final event, its own, and nothing after it; another run has none."""
    endings = [event for event in log if event.type in FINAL.values()]
    if run.status not in FINAL:
        assert not endings, f"{run} is {run.status} after {endings[0].type}"
        return
    assert [event.type for event in endings] == [FINAL[run.status]], f"{run}: {endings}"
    assert log[-1] == endings[0], f"{run}: {log[-1].type} after its end"
    assert Lease.objects.get(run=run).owner is None, f"{run} has ended and is still held"
    waiting = InboxItem.objects.filter(run_id=run.id, moved_seq=None)
    assert not waiting.exists(), f"{run} has ended with something received"


def _check_cancel(run: Run, log: list[Event]) -> None:
    """Once a cancel is in the log, only undoing starts."""
    cancelled = False
    for event in log:
        cancelled = cancelled or event.type == "cancel.requested"
        if cancelled and event.type == "external.requested":
            assert event.task_key.startswith("undo:"), f"{run}: {event.task_key} after the cancel"


def _check_append_only() -> None:
    """The database itself refuses to change or empty a log."""
    if not Event.objects.exists():
        return
    for sql in (
        "UPDATE durable_event SET actor = 'nobody'",
        "DELETE FROM durable_event",
        "TRUNCATE durable_event",
    ):
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '5s'")
                cursor.execute(sql)
                raise AssertionError(f"{sql} was not refused")
        except DatabaseError as error:
            assert isinstance(error.__cause__, psycopg.Error)
            assert error.__cause__.sqlstate == "23001", f"{sql}: {error}"


# Records and approvals ------------------------------------------------------------------------


def _check_records() -> None:
    """Under a run that ended nothing is prepared or running."""
    left = IdempotencyRecord.objects.filter(
        run__status__in=FINAL, status__in=["prepared", "running"]
    )
    assert not left.exists(), f"left behind: {[(str(r), r.status) for r in left]}"


def _check_approvals() -> None:
    """One decision each, none open under a run that ended, and one permit per approved action."""
    for approval in Approval.objects.all():
        decisions = Decision.objects.filter(approval=approval)
        decided = approval.status in ("approved", "rejected")
        assert decisions.count() <= 1, f"{approval}: {decisions.count()} decisions"
        assert not decided or decisions.count() == 1, f"{approval} is {approval.status} by nobody"
    pending = Approval.objects.filter(status="pending", run__status__in=FINAL)
    assert not pending.exists(), f"still asked for: {[str(approval) for approval in pending]}"
    for permit in Permit.objects.filter(status="consumed"):
        record = IdempotencyRecord.objects.get(operation_id=permit.operation_id)
        happened = ("succeeded", "compensating", "compensated")
        assert record.status in happened, f"{record} is {record.status}, its permit consumed"
        assert permit.approval.operation_id == permit.operation_id, f"{permit}: another action"
    for record in IdempotencyRecord.objects.filter(status="succeeded").exclude(
        approval_version=None
    ):
        used = Permit.objects.filter(operation_id=record.operation_id, status="consumed")
        assert used.count() == 1, f"{record} happened with {used.count()} consumed permits"


# The outside -----------------------------------------------------------------------------------


def _sent_key(run: Run, payload: dict[str, Any]) -> str:
    undo = ":undo" if payload["operation"].endswith(":undo") else ""
    generation = f":g{run.generation}" if run.generation > 1 else ""
    return f"{payload['key']}{undo}{generation}"


def _check_ledger(sandbox: Sandbox, logs: dict[Any, list[Event]]) -> None:
    """Nothing happened twice, and nothing was sent without an intent of that very epoch."""
    ledger = sandbox.ledger(method="POST")
    applied = Counter(
        (entry["service"], entry["operation"], entry["key"]) for entry in ledger if entry["applied"]
    )
    twice = [name for name, times in applied.items() if times > 1]
    assert not twice, f"applied twice: {twice}"
    doubled = sandbox.summary()["doubled"]
    assert not doubled, f"done under two keys: {doubled}"
    intents = _intents(logs)
    sent = Counter((entry["run"], entry["key"], entry["fence"]) for entry in ledger)
    for call, times in sent.items():
        if call[0]:
            allowed = intents[call]
            assert times <= allowed, f"{call}: sent {times} times with {allowed} stored intents"


def _intents(logs: dict[Any, list[Event]]) -> Counter[tuple[str, str, int]]:
    from durable import canonical

    intents: Counter[tuple[str, str, int]] = Counter()
    runs = {run.id: run for run in Run.objects.all()}
    for run_id, log in logs.items():
        for event in log:
            if event.type == "external.requested":
                key = _sent_key(runs[run_id], canonical.loads(event.payload))
                intents[(str(run_id), key, event.epoch)] += 1
    return intents


# Liveness, logs, sessions ---------------------------------------------------------------------


def _check_rest() -> None:
    """Nobody waits for what has already come, and nothing due is left lying."""
    bound = conf.lease_ttl() + timedelta(seconds=3 * conf.sweep_interval())
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now = cursor.fetchone()[0]
    dead = Lease.objects.filter(owner__isnull=False, expires_at__lt=now - bound)
    assert not dead.exists(), f"held by the dead: {[str(lease) for lease in dead]}"
    late = Run.objects.filter(wake_at__lt=now - bound)
    assert not late.exists(), f"due and not taken: {[str(run) for run in late]}"
    unread = InboxItem.objects.filter(moved_seq=None, received_at__lt=now - bound)
    assert not unread.exists(), f"never read: {[str(item) for item in unread]}"
    for run in Run.objects.filter(status="waiting", wake_at=None):
        assert _waits_for_something(run), f"{run} waits for {run.waiting_for!r}, which has come"


def _waits_for_something(run: Run) -> bool:
    approvals = Approval.objects.filter(run=run, status="pending")
    questions = Interrupt.objects.filter(run=run, status="open")
    match run.waiting_for:
        case "approval":
            return approvals.exists()
        case "answer":
            return questions.exists()
        case "record":
            return IdempotencyRecord.objects.filter(
                operation_id=run.waiting_on or NOBODY,
                status__in=["prepared", "running", "unknown", "failed", "compensating"],
            ).exists()
        case _:
            return approvals.exists() or questions.exists()


TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?:(?!\d{4}-\d\d-\d\d |\[\d{4}-\d\d-\d\d ).*\n?)*",
    re.MULTILINE,
)


def _check_tracebacks(workers: Sequence[Logged], injected: tuple[str, ...]) -> None:
    for worker in workers:
        for traceback in TRACEBACK.findall(worker.log()):
            known = any(re.search(pattern, traceback) for pattern in injected)
            assert known, f"{worker.name} logged:\n{traceback[-2000:]}"


def _check_sessions() -> None:
    """No session of ours sits on an open transaction."""
    deadline = time.monotonic() + 3 * OPEN_TRANSACTION_SECONDS
    while sitting := _sitting():
        assert time.monotonic() < deadline, f"idle in transaction: {sitting}"
        time.sleep(0.05)


def _sitting() -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, application_name, query FROM pg_stat_activity"
            " WHERE datname = current_database() AND state LIKE 'idle in transaction%%'"
            " AND pid <> pg_backend_pid()"
            " AND clock_timestamp() - state_change > make_interval(secs => %s)",
            [OPEN_TRANSACTION_SECONDS],
        )
        return list(cursor.fetchall())
