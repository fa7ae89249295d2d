"""Killing, freezing or delaying a process at a named point of its work, once.

A test puts a plan into a folder; the processes it started look there at each point. The points of
an outside action, in order:

    K1      its record is prepared or not yet opened; the start is about to be stored
    K1b     its start is stored, nothing is sent
    sending the last line before the request leaves (the effect's own code says so)
    K2      the outside has answered, the result is about to be stored
    K3      the result is stored
    K4      the run was parked or has ended
    K5      the Celery task has returned, its message is not acknowledged
    commit  a transaction of an outsider committed, nobody was told (in whatever process)

A file `paused` in the folder keeps the sweepers of those processes still.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

Deed = Literal["kill", "freeze", "delay"]
VARIABLE = "SCENARIO_FAULTS"

# What this process has started: the key of each operation, the keys of each run.
_key_of: dict[UUID, str] = {}
_keys_of_run: dict[UUID, set[str]] = {}
_run: list[UUID] = []


def folder() -> Path | None:
    """Where the plans of this process lie; None when nothing shall ever go wrong here."""
    return Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def plan(
    faults: Path, point: str, match: str = "", *, deed: Deed = "kill", seconds: float = 0.0
) -> Path:
    """Have whoever first reaches `point` with a key that contains `match` suffer `deed`, once.

    Returns the marker, a file that appears when it happens and holds the process's id.
    """
    # Named so that a delay comes before a kill at the same point.
    marker = faults / f"{deed}-{uuid4()}.{point}.fired"
    wish = {"point": point, "match": match, "deed": deed, "seconds": seconds}
    unfinished = marker.with_suffix(".new")
    unfinished.write_text(json.dumps(wish))
    unfinished.rename(marker.with_suffix(".plan"))
    return marker


def point(name: str, *keys: str) -> None:
    """Suffer every plan for this point that means one of `keys`."""
    faults = folder()
    if faults is None:
        return
    for path in sorted(faults.glob(f"*.{name}.plan")):
        try:
            wish = json.loads(path.read_text())
            if not any(wish["match"] in key for key in keys):
                continue
            # The rename decides who it is, if several processes stand here.
            taken = path.rename(path.with_suffix(".taken"))
        except FileNotFoundError:
            continue
        taken.write_text(str(os.getpid()))
        taken.rename(path.with_suffix(".fired"))
        _suffer(wish)


def _suffer(wish: dict[str, Any]) -> None:
    match wish["deed"]:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            time.sleep(wish["seconds"])


def install() -> None:
    """Wrap the journal, the nudges and the Celery task of this process with the points."""
    from celery.signals import task_postrun, worker_init

    from durable import inbox, sweeper
    from durable.journal import Journal

    Journal.call = _around_call(Journal.call)  # type: ignore[method-assign]
    Journal.write = _around_write(Journal.write)  # type: ignore[method-assign]
    inbox.poke = _before_poke(inbox.poke)
    inbox.announce = _before_announce(inbox.announce)
    sweeper.sweep = _unless_paused(sweeper.sweep)
    task_postrun.connect(_after_task, weak=False)
    if "SCENARIO_TOUCH" in os.environ:
        worker_init.connect(_touch_the_database, weak=False)


def _around_call(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, fence: Any, function: str, params: Any, *, events: int) -> Any:
        def write() -> Any:
            return call(self, fence, function, params, events=events)

        if "durable_effect_begin_v1" in function:
            return _between("K1", "K1b", _note(fence.run_id, params[0], params[3]), write)
        if "durable_effect_end_v1" in function:
            return _between("K2", "K3", _key_of.get(params[0], ""), write)
        return write()

    return wrapped


def _around_write(write: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, fence: Any, *statements: Any) -> Any:
        def store() -> Any:
            return write(self, fence, *statements)

        opening = _calling("durable_effect_open_v1", statements)
        settling = _calling("durable_effect_settle_v1", statements)
        if opening is not None and _calling("durable_effect_start_v1", statements):
            key = _note(fence.run_id, opening.params[1], opening.params[4])
            return _between("K1", "K1b", key, store)
        if settling is not None:
            return _between("K2", "K3", _key_of.get(settling.params[1], ""), store)
        rows = store()
        if any(_calling(f"durable_{end}_v1", statements) for end in ("park", "finish", "block")):
            _run[:] = [fence.run_id]
            point("K4", *_keys_of_run.get(fence.run_id, ()))
        return rows

    return wrapped


def _calling(function: str, statements: Any) -> Any:
    """The statement that calls a function of the database, by its name there."""
    return next((each for each in statements if function in each.sql), None)


def _note(run_id: UUID, operation_id: UUID, key: str) -> str:
    _key_of[operation_id] = key
    _keys_of_run.setdefault(run_id, set()).add(key)
    return key


def _between(before: str, after: str, key: str, write: Callable[[], Any]) -> Any:
    point(before, key)
    value = write()
    point(after, key)
    return value


def _before_poke(poke: Callable[..., None]) -> Callable[..., None]:
    def wrapped(run_id: UUID, *, cancel: bool = False) -> None:
        point("commit", str(run_id))
        poke(run_id, cancel=cancel)

    return wrapped


def _before_announce(announce: Callable[..., None]) -> Callable[..., None]:
    def wrapped(run_id: UUID) -> None:
        point("commit", str(run_id))
        announce(run_id)

    return wrapped


def _touch_the_database(**_: Any) -> None:
    """Use every connection there is in the parent, before it forks its pool."""
    from django.db import connection

    from durable.gate import Statement
    from durable.journal import journal
    from tests.scenarios.workflows import note

    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    journal().read(Statement(sql="SELECT 1", params=()))
    note("database", "touched")


def _unless_paused(sweep: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(owner: UUID) -> Any:
        faults = folder()
        return None if faults and (faults / "paused").exists() else sweep(owner)

    return wrapped


def _after_task(**_: Any) -> None:
    for run_id in _run:
        point("K5", *_keys_of_run.get(run_id, ()))
    _run.clear()
