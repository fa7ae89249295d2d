"""The sandbox's own storage: what was applied, what was asked, how to misbehave.

One SQLite file in WAL mode. A COMMIT is in the operating system's hands before the caller is
answered, so that killing the process (SIGKILL included) loses nothing that was answered. Only a
power cut could, and a sandbox need not survive that (hence `synchronous = NORMAL`).
"""

import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from examples.sandbox import switches
from examples.sandbox.catalogue import Operation, Service
from examples.sandbox.switches import Behaviour, Switch
from examples.strict_json import Json, canonical, loads

SCHEMA = """
CREATE TABLE IF NOT EXISTS operation (
    service TEXT NOT NULL, operation TEXT NOT NULL, key TEXT NOT NULL,
    request TEXT NOT NULL, resource TEXT NOT NULL, business TEXT NOT NULL, id TEXT NOT NULL,
    PRIMARY KEY (service, operation, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS operation_business ON operation (service, operation, business);
CREATE INDEX IF NOT EXISTS operation_id ON operation (id);
CREATE TABLE IF NOT EXISTS ledger (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    time TEXT NOT NULL, service TEXT NOT NULL, method TEXT NOT NULL, operation TEXT NOT NULL,
    key TEXT NOT NULL, run TEXT NOT NULL, fence INTEGER, body TEXT NOT NULL,
    behaviour TEXT NOT NULL, business TEXT NOT NULL DEFAULT '',
    applied INTEGER NOT NULL DEFAULT 0, deduplicated INTEGER NOT NULL DEFAULT 0,
    status INTEGER, code TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS ledger_service ON ledger (service, number);
CREATE INDEX IF NOT EXISTS ledger_key ON ledger (key, number);
CREATE INDEX IF NOT EXISTS ledger_run ON ledger (run, number);
CREATE INDEX IF NOT EXISTS ledger_counts
    ON ledger (service, operation, method, applied, deduplicated, status);
CREATE TABLE IF NOT EXISTS fence (run TEXT PRIMARY KEY, highest INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS switch (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    service TEXT NOT NULL, operation TEXT NOT NULL, match TEXT NOT NULL, behaviour TEXT NOT NULL,
    seconds REAL NOT NULL, retry_after TEXT NOT NULL, times INTEGER,
    UNIQUE (service, operation, match)
);
"""

FILTERS = {
    "service": "service = ?",
    "operation": "operation = ?",
    "method": "method = ?",
    "key": "key = ?",
    "run": "run = ?",
    "applied": "applied = ?",
    "after": "number > ?",
}


@dataclass(frozen=True, kw_only=True)
class Received:
    """A request as it came in. `operation` is the noun; `fence` None means none was sent."""

    service: Service
    method: str
    operation: str
    key: str = ""
    run: str = ""
    fence: int | None = None
    body: str = ""

    @property
    def subject(self) -> str:
        """The operation as switches name it."""
        return switches.LOOKUP if self.method == "GET" else self.operation


@dataclass(frozen=True)
class Applied:
    """The operation happened now."""

    resource: dict[str, Json]


@dataclass(frozen=True)
class Repeated:
    """It had happened before, under this key and with this body."""

    resource: dict[str, Json]


@dataclass(frozen=True)
class KeyReused:
    """The key belongs to a request with another body."""


@dataclass(frozen=True)
class StaleFence:
    """A later holder of the run has been here already."""

    highest: int


@dataclass(frozen=True)
class Declined:
    """The payment was not accepted; nothing happened."""


@dataclass(frozen=True)
class Forgotten:
    """The sandbox was reset while the request was under way; it must leave no trace."""


Outcome = Applied | Repeated | KeyReused | StaleFence | Declined | Forgotten


class Store:
    """The sandbox's memory. Safe to share between threads; one process per file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.executescript(SCHEMA)

    def close(self) -> None:
        """Close the file. Later calls raise sqlite3.ProgrammingError."""
        with self._lock:
            self._db.close()

    # Requests

    def arrive(self, received: Received) -> tuple[int, Switch]:
        """Write the request into the ledger; say which switch it meets, using one of its times."""
        with self._writing() as db:
            switch = self._take_switch(db, received)
            number = self._enter(db, received, switch.behaviour)
        return number, switch

    def refuse(self, received: Received, status: int, code: str) -> None:
        """Write a request into the ledger that no operation could be found in."""
        with self._writing() as db:
            number = self._enter(db, received, Behaviour.OK)
            db.execute(
                "UPDATE ledger SET status = ?, code = ? WHERE number = ?", (status, code, number)
            )

    def perform(
        self, number: int, received: Received, operation: Operation, *, decline: bool
    ) -> Outcome:
        """Do the operation once per key: fence, key and effect in one transaction."""
        with self._writing() as db:
            outcome = self._perform(db, received, operation, decline=decline)
            changed = db.execute(
                "UPDATE ledger SET applied = ?, deduplicated = ?, business = ? WHERE number = ?",
                (
                    isinstance(outcome, Applied),
                    isinstance(outcome, Repeated),
                    operation.business_key(loads(received.body)),
                    number,
                ),
            )
            # A reset emptied the ledger meanwhile: a late call must not spoil the next test.
            if changed.rowcount == 0:
                db.execute("ROLLBACK")
                return Forgotten()
        return outcome

    def answered(self, number: int, status: int | None, code: str) -> None:
        """Record what the request is answered; None means that the answer did not get out."""
        with self._writing() as db:
            db.execute(
                "UPDATE ledger SET status = ?, code = ? WHERE number = ?", (status, code, number)
            )

    def find(self, operation: Operation, key: str) -> tuple[dict[str, Json], Json] | None:
        """The resource and the request that a key stands for, or None."""
        row = self._row(
            "SELECT resource, request FROM operation"
            " WHERE service = ? AND operation = ? AND key = ?",
            (operation.service.value, operation.name, key),
        )
        return None if row is None else (loads(row["resource"]), loads(row["request"]))

    # Switches

    def set_switch(self, switch: Switch) -> int:
        """Put a switch in the place of the one with the same scope; return its number."""
        with self._writing() as db:
            db.execute(
                "DELETE FROM switch WHERE service = ? AND operation = ? AND match = ?",
                (switch.service.value, switch.operation, switch.match),
            )
            if switch.is_default:
                return 0
            cursor = db.execute(
                "INSERT INTO switch"
                " (service, operation, match, behaviour, seconds, retry_after, times)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    switch.service.value,
                    switch.operation,
                    switch.match,
                    switch.behaviour.value,
                    switch.seconds,
                    switch.retry_after,
                    switch.times,
                ),
            )
            return cursor.lastrowid or 0

    def remove_switch(self, number: int) -> bool:
        """Remove one switch; False if there is none with that number."""
        with self._writing() as db:
            return db.execute("DELETE FROM switch WHERE number = ?", (number,)).rowcount == 1

    def switches(self) -> list[Switch]:
        """Every switch that is set, oldest first."""
        return [_switch(row) for row in self._rows("SELECT * FROM switch ORDER BY number")]

    def reset(self) -> None:
        """Forget ledger, operations, fences and switches. Ledger numbers go on."""
        with self._writing() as db:
            for table in ("ledger", "operation", "fence", "switch"):
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - names from the line above

    # Reading the ledger, each on its own connection: a reader never holds up the services

    def ledger(
        self, filters: Mapping[str, str | int], *, limit: int, newest: bool = False, offset: int = 0
    ) -> list[dict[str, Json]]:
        """Ledger rows that meet every filter (see FILTERS), at most `limit` of them."""
        where = " AND ".join(FILTERS[name] for name in filters) or "1"
        order = "DESC" if newest else "ASC"
        rows = self._rows(
            f"SELECT * FROM ledger WHERE {where}"  # noqa: S608 - only fixed text is put together
            f" ORDER BY number {order} LIMIT ? OFFSET ?",
            (*filters.values(), limit, offset),
        )
        return [_entry(row) for row in rows]

    def count(self, service: str = "") -> int:
        """How many requests the ledger holds, of one service or of all."""
        row = self._row("SELECT count(*) AS n FROM ledger WHERE ? IN ('', service)", (service,))
        return 0 if row is None else int(row["n"])

    def counts(self) -> list[dict[str, Json]]:
        """Per service, operation and method: requests, applied, deduplicated, never answered."""
        return [
            dict(row)
            for row in self._rows(
                "SELECT service, operation, method, count(*) AS requests,"
                " sum(applied) AS applied, sum(deduplicated) AS deduplicated,"
                " count(*) - count(status) AS unanswered"
                " FROM ledger GROUP BY service, operation, method"
            )
        ]

    def doubled(self) -> list[dict[str, Json]]:
        """Everything that was done more than once to the same order, charge, shipment or reader."""
        return [
            dict(row)
            for row in self._rows(
                "SELECT service, operation, business, count(*) AS applied FROM operation"
                " GROUP BY service, operation, business HAVING count(*) > 1"
            )
        ]

    def applied(self, operation: str) -> list[dict[str, Json]]:
        """Every applied operation of one name: key, business key, id, request."""
        return [
            {**dict(row), "request": loads(row["request"])}
            for row in self._rows(
                "SELECT service, operation, key, business, id, request FROM operation"
                " WHERE operation = ? ORDER BY key",
                (operation,),
            )
        ]

    # Inside

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            if self._db.in_transaction:
                self._db.execute("COMMIT")

    def _rows(self, sql: str, values: tuple[str | int, ...] = ()) -> list[sqlite3.Row]:
        with closing(sqlite3.connect(self.path, timeout=30)) as db:
            db.row_factory = sqlite3.Row
            return db.execute(sql, values).fetchall()

    def _row(self, sql: str, values: tuple[str | int, ...] = ()) -> sqlite3.Row | None:
        rows = self._rows(sql, values)
        return rows[0] if rows else None

    def _take_switch(self, db: sqlite3.Connection, received: Received) -> Switch:
        cursor = db.execute("SELECT * FROM switch WHERE service = ?", (received.service.value,))
        names = [column[0] for column in cursor.description]
        known = [_switch(dict(zip(names, row, strict=True))) for row in cursor]
        switch = switches.choose(known, received.service, received.subject, received.key)
        if switch.times is not None:
            db.execute("UPDATE switch SET times = times - 1 WHERE number = ?", (switch.number,))
            db.execute("DELETE FROM switch WHERE number = ? AND times <= 0", (switch.number,))
        return switch

    def _enter(self, db: sqlite3.Connection, received: Received, behaviour: Behaviour) -> int:
        cursor = db.execute(
            "INSERT INTO ledger"
            " (time, service, method, operation, key, run, fence, body, behaviour)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                _now(),
                received.service.value,
                received.method,
                received.operation,
                received.key,
                received.run,
                received.fence,
                received.body,
                behaviour.value,
            ),
        )
        return cursor.lastrowid or 0

    def _perform(
        self, db: sqlite3.Connection, received: Received, operation: Operation, *, decline: bool
    ) -> Outcome:
        highest = self._raise_fence(db, received)
        if highest is not None:
            return StaleFence(highest)
        known = db.execute(
            "SELECT request, resource FROM operation"
            " WHERE service = ? AND operation = ? AND key = ?",
            (operation.service.value, operation.name, received.key),
        ).fetchone()
        if known is not None:
            return Repeated(loads(known[1])) if known[0] == received.body else KeyReused()
        if decline:
            return Declined()
        body = loads(received.body)
        resource = {"id": f"{operation.prefix}_{secrets.token_hex(8)}", "created": _now(), **body}
        db.execute(
            "INSERT INTO operation (service, operation, key, request, resource, business, id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                operation.service.value,
                operation.name,
                received.key,
                received.body,
                canonical(resource),
                operation.business_key(body),
                resource["id"],
            ),
        )
        return Applied(resource)

    def _raise_fence(self, db: sqlite3.Connection, received: Received) -> int | None:
        """Remember the request's fence; return the highest one if the request comes too late."""
        if received.fence is None:
            return None
        raised = db.execute(
            "INSERT INTO fence (run, highest) VALUES (?, ?) ON CONFLICT (run)"
            " DO UPDATE SET highest = excluded.highest WHERE excluded.highest >= highest",
            (received.run, received.fence),
        )
        if raised.rowcount == 1:
            return None
        row = db.execute("SELECT highest FROM fence WHERE run = ?", (received.run,)).fetchone()
        return int(row[0])


def _switch(row: sqlite3.Row | Mapping[str, Json]) -> Switch:
    return Switch(
        service=Service(row["service"]),
        operation=row["operation"],
        match=row["match"],
        behaviour=Behaviour(row["behaviour"]),
        seconds=row["seconds"],
        retry_after=row["retry_after"],
        times=row["times"],
        number=row["number"],
    )


def _entry(row: sqlite3.Row) -> dict[str, Json]:
    entry = dict(row)
    return {
        **entry,
        "applied": bool(entry["applied"]),
        "deduplicated": bool(entry["deduplicated"]),
        "status": "never answered" if entry["status"] is None else entry["status"],
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
