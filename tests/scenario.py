"""One-line moves of a run for tests inside one process, and an outside service that misbehaves."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from django.db import connection, connections, transaction

from durable import Failure, Happened, NotFound, Retryable, StillUnknown, engine, runs
from durable import journal as journals
from durable import leases as heartbeats
from durable.models import Event, IdempotencyRecord, Interrupt, Lease, Run
from durable.statuses import FINAL_RUN_STATUSES

# The engine in this process ---------------------------------------------------------------------


def let_go() -> None:
    """Close the engine's own connections, or the test database could not be removed."""
    journals.journal().close()
    heartbeat = heartbeats.heartbeat()
    if heartbeat._link is not None:
        heartbeat._link.close()
        heartbeat._link = None


# The database ------------------------------------------------------------------------------------


def execute(sql: str, *params: Any) -> None:
    """Run a statement as it is, outside the engine."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params or None)


def value_of(sql: str, *params: Any) -> Any:
    """The single value of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params or None)
        row = cursor.fetchone()
    return row[0] if row else None


def past_the_triggers(sql: str, *params: Any) -> None:
    """Tamper with what the triggers protect, as a restored or damaged database would look."""
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = replica")
        execute(sql, *params)


# Runs --------------------------------------------------------------------------------------------


def start(flow: Any, input: Any = None, **options: Any) -> Run:
    """Start a run of a workflow, by its definition or name."""
    name = flow if isinstance(flow, str) else flow.name
    return runs.start(name, input, **{"actor": "user:oscar", **options}).run


def fresh(run: Run) -> Run:
    return Run.objects.get(id=run.id)


def go(run: Run) -> Run:
    """Let one executor advance the run as far as it goes; return it as stored now."""
    engine.advance(run.id)
    return fresh(run)


def begin(flow: Any, input: Any = None, **options: Any) -> Run:
    """Start a run and advance it as far as it goes."""
    return go(start(flow, input, **options))


def wake(run: Run) -> Run:
    """Go on with a parked run at once, as its timer or a poke would."""
    execute("UPDATE durable_run SET wake_at = clock_timestamp() WHERE id = %s", run.id)
    return go(run)


def lapse(run: Run) -> None:
    """The executor's lease is over, by the database's clock."""
    execute(
        "UPDATE durable_lease SET expires_at = clock_timestamp() - interval '1 s'"
        " WHERE run_id = %s AND owner IS NOT NULL",
        run.id,
    )


def take_over(run: Run) -> Run:
    """Another executor takes the dead one's run."""
    lapse(run)
    return go(run)


def can_no_longer_land(run: Run) -> None:
    """The call's deadline and settling time are over."""
    execute(
        "UPDATE durable_idempotencyrecord SET call_deadline = clock_timestamp() - interval '2 s',"
        " settle_until = clock_timestamp() - interval '1 s' WHERE run_id = %s",
        run.id,
    )


def answer(run: Run, value: Any, *, by: str = "user:alice") -> None:
    """Answer the only open question of a run."""
    runs.answer(Interrupt.objects.get(run=run, status="open").id, value, actor=by)


# What is stored ----------------------------------------------------------------------------------


def lease(run: Run) -> Lease:
    return Lease.objects.get(run=run)


def record(run: Run, **fields: Any) -> IdempotencyRecord:
    return IdempotencyRecord.objects.get(run=run, **fields)


def events(run: Run, *types: str) -> list[Event]:
    found = Event.objects.filter(run_id=run.id).order_by("seq")
    return list(found.filter(type__in=types) if types else found)


def types(run: Run) -> list[str]:
    return [event.type for event in events(run)]


def payloads(run: Run, type: str) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for event in events(run, type)]


def output(run: Run) -> Any:
    """What a run that succeeded returned."""
    assert run.status == "succeeded", (run.status, run.code, run.reason)
    return json.loads(run.output or "null")


def is_at_rest(run: Run) -> bool:
    """Whether nobody holds the run and, if it has ended, nothing is due."""
    run = fresh(run)
    return lease(run).owner is None and (
        run.status not in FINAL_RUN_STATUSES or run.wake_at is None
    )


# Several at once ---------------------------------------------------------------------------------


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that leave one barrier together; return results or errors."""
    barrier = threading.Barrier(len(calls))

    def wait_and_call(call: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            barrier.wait()
            return call()
        except BaseException as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(wait_and_call, calls))


class Elsewhere:
    """A transaction on a connection of its own, open until the block ends."""

    def __init__(self) -> None:
        parameters = dict(connection.get_connection_params())
        for name in ("cursor_factory", "context", "prepare_threshold", "pool"):
            parameters.pop(name, None)
        self._connection = psycopg.connect(**parameters)

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def execute(self, sql: str, *params: Any) -> None:
        self._connection.execute(sql, params or None)

    def commit(self) -> None:
        self._connection.commit()


def somebody_waits_for_a_lock(seconds: float = 10) -> None:
    """Return once some session waits for a lock."""
    end = threading.Event()
    for _ in range(int(seconds * 200)):
        if value_of("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            return
        end.wait(0.005)
    raise AssertionError("nobody waits for a lock")


# The outside -------------------------------------------------------------------------------------


class Service:
    """An outside service with a ledger. `then` says how the next calls go; after that all is well.

    ok, busy (did not happen, try again), refused (did not happen), lost (no answer, did not
    happen), silent (no answer, did happen); or an exception to raise instead of doing anything.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []  # every key received
        self.done: list[tuple[str, Any]] = []  # what took effect
        self.asked: list[str] = []  # look-ups
        self.moods: deque[str | BaseException] = deque()
        self.lookup_moods: deque[str] = deque()

    def then(self, *moods: str | BaseException) -> None:
        self.moods.extend(moods)

    def lookup_then(self, *moods: str) -> None:
        """unknown, error, or missing: what the next look-ups say instead of the truth."""
        self.lookup_moods.extend(moods)

    def do(self, key: str, what: Any) -> dict[str, Any]:
        self.calls.append(key)
        mood = self.moods.popleft() if self.moods else "ok"
        if isinstance(mood, BaseException):
            raise mood
        if mood == "busy":
            raise Retryable("busy", retry_after=60)
        if mood == "refused":
            raise Failure("refused")
        if mood == "lost":
            raise TimeoutError("no answer")
        self.done.append((key, what))
        if mood == "silent":
            raise TimeoutError("no answer")
        return {"id": f"r{len(self.done)}", "what": what}

    def find(self, key: str) -> Happened | type[NotFound] | type[StillUnknown]:
        self.asked.append(key)
        mood = self.lookup_moods.popleft() if self.lookup_moods else ""
        if mood == "unknown":
            return StillUnknown
        if mood == "error":
            raise ConnectionError("away")
        for number, (done, what) in enumerate(self.done, 1):
            if done == key and mood != "missing":
                return Happened(result={"id": f"r{number}", "what": what}, resource=f"r{number}")
        return NotFound

    def keys(self, part: str = "") -> list[str]:
        """The keys that took effect, in order."""
        return [key for key, _ in self.done if part in key]

    def clear(self) -> None:
        for kept in (self.calls, self.done, self.asked, self.moods, self.lookup_moods):
            kept.clear()
