"""Finding what lost messages and dead workers left behind. Every worker carries one.

Everything it finds is found again until it is done, so a sweep that fails half-way costs one
interval. Running it twice at once is harmless; the election only saves work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from psycopg.types.json import Jsonb

from durable import claims, conf, inbox, outbox, registry, sql

logger = logging.getLogger(__name__)

Sweep = Callable[[], int]
_sweeps: dict[str, Sweep] = {}

# Hints per sweep: more would only pile up in the broker while the workers are busy.
LIMIT = 500
# Of runs whose code this worker lacks: another release's worker may have it, or nobody.
OTHERS = 50

ELECT = """
INSERT INTO durable_sweeper (id, owner, worker, expires_at, found)
VALUES (1, %s, %s, clock_timestamp() + %s, '{}')
ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, worker = excluded.worker,
    expires_at = excluded.expires_at
WHERE durable_sweeper.owner IS NULL OR durable_sweeper.owner = excluded.owner
    OR durable_sweeper.expires_at <= clock_timestamp()
RETURNING 1
"""
RECORD = "UPDATE durable_sweeper SET swept_at = clock_timestamp(), found = %s WHERE owner = %s"

# Only runs whose code is here: 500 that no worker takes would for ever stand before the rest.
EXPIRED = """
SELECT run.id FROM durable_lease AS lease JOIN durable_run AS run ON run.id = lease.run_id
WHERE lease.owner IS NOT NULL AND lease.expires_at <= clock_timestamp()
    AND run.workflow || '@' || run.version = ANY (%s)
ORDER BY lease.expires_at LIMIT %s
"""
# A freshly due run has a hint of its own on the way; the older ones first.
DUE = """
SELECT run.id FROM durable_run AS run WHERE run.wake_at <= clock_timestamp() - %s::interval
    AND run.workflow || '@' || run.version = ANY (%s)
ORDER BY run.priority DESC, run.wake_at LIMIT %s
"""
# Of both, those of other workers. In a rolling deploy an old worker may eat the only hint of a new
# run, and be elected too. At random, or those that nobody has would stand before them.
ELSEWHERE = """
SELECT run.id FROM durable_run AS run JOIN (
    SELECT id FROM durable_run WHERE wake_at <= clock_timestamp() - %s::interval
    UNION
    SELECT run_id FROM durable_lease WHERE owner IS NOT NULL AND expires_at <= clock_timestamp()
) AS found ON found.id = run.id
WHERE run.workflow || '@' || run.version <> ALL (%s) ORDER BY random() LIMIT %s
"""
RECEIVED = """
SELECT DISTINCT item.run_id, bool_or(item.type = 'cancel.requested') OVER (PARTITION BY item.run_id)
FROM durable_inboxitem AS item JOIN durable_lease AS lease ON lease.run_id = item.run_id
JOIN durable_run AS run ON run.id = item.run_id
WHERE item.moved_seq IS NULL AND lease.owner IS NULL
    AND (run.wake_at IS NULL OR run.wake_at > clock_timestamp()) LIMIT %s
"""
# The record that a parked run waits for has been settled, or its run has ended.
SETTLED = """
SELECT waiting.id FROM durable_run AS waiting
LEFT JOIN durable_idempotencyrecord AS record ON record.operation_id = waiting.waiting_on
LEFT JOIN durable_run AS holder ON holder.id = record.run_id
WHERE waiting.waiting_on IS NOT NULL AND waiting.status = 'waiting'
    AND (waiting.wake_at IS NULL OR waiting.wake_at > clock_timestamp())
    AND (record.operation_id IS NULL OR record.status IN ('succeeded', 'compensated', 'void')
        OR (record.status IN ('failed', 'prepared')
            AND (holder.status IN ('succeeded', 'failed', 'cancelled')
                OR holder.id = waiting.id))) LIMIT %s
"""
MESSAGES = """
SELECT count(*) FROM (SELECT 1 FROM durable_outboxmessage
    WHERE status IN ('pending', 'sending') AND next_at <= clock_timestamp() LIMIT %s) AS due
"""


def register(name: str, sweep: Sweep) -> None:
    """Let another app find its own overdue things; `sweep` returns how many it dealt with."""
    _sweeps[name] = sweep


def sweep(owner: UUID) -> dict[str, int] | None:
    """Look once, if elected. Returns what was found, by kind; None when another worker looks.

    Raises django.db.DatabaseError when the database is away: the caller tries again.
    """
    if not _elected(owner):
        return None
    known = [definition.key for definition in registry.workflows()]
    not_fresh = timedelta(seconds=conf.sweep_interval() / 5)
    found = {
        "leases expired": _announce(EXPIRED, known, LIMIT),
        "runs due": _announce(DUE, not_fresh, known, LIMIT),
        "runs of other workers": _announce(ELSEWHERE, not_fresh, known, OTHERS),
        "received": _poke_received(),
        "records settled": _poke_settled(),
        "messages due": _announce_messages(),
    }
    for name, look in _sweeps.items():
        try:
            found[name] = look()
        except Exception:  # one bad row must not hide everything else
            logger.exception("sweep of %s failed", name)
            found[name] = -1
    _record(owner, found)
    return found


def _elected(owner: UUID) -> bool:
    term = timedelta(seconds=conf.sweep_interval() * 2)
    return bool(sql.rows(ELECT, owner, claims.worker_name(), term))


def _record(owner: UUID, found: dict[str, int]) -> None:
    sql.rows(RECORD, Jsonb(found), owner)


def _announce(statement: str, *params: object) -> int:
    rows = sql.rows(statement, *params)
    for (run_id,) in rows:
        inbox.announce(run_id)
    return len(rows)


def _poke_received() -> int:
    rows = sql.rows(RECEIVED, LIMIT)
    for run_id, cancel in rows:
        inbox.poke(run_id, cancel=bool(cancel))
    return len(rows)


def _poke_settled() -> int:
    rows = sql.rows(SETTLED, LIMIT)
    for (run_id,) in rows:
        inbox.poke(run_id)
    return len(rows)


def _announce_messages() -> int:
    # Not sent from here: a consumer that hangs would hold up every run.
    due = int(sql.value(MESSAGES, LIMIT))
    if due:
        outbox.announce()
    return due
