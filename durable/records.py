"""Idempotency records as the executor reads and moves them: the SQL of the effect protocol.

Each statement is a function of the migrations that raises rather than match no row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from durable.canonical import JSON
from durable.gate import Statement
from durable.statuses import RecordStatus

_READ = """
SELECT operation_id, status, run_id, task_key, request_hash, response, error, epoch, attempt,
    external_resource_id, settle_until, deduplicates, proposed_request, sent_request, operation,
    started_at, clock_timestamp() AS now
FROM durable_idempotencyrecord
"""
READ = f"{_READ} WHERE operation_id = %s"
OF_RUN = f"{_READ} WHERE run_id = %s"
FIND = (
    f"{_READ} WHERE tenant = %s AND operation = %s AND key = %s AND generation = %s"
    " AND status <> 'void'"
)
OPEN = "SELECT durable_effect_open_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
START = "SELECT durable_effect_start_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
SETTLE = "SELECT durable_effect_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
# Hold + open + start, and hold + settle, each as one statement.
BEGIN = """
SELECT durable_effect_begin_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    %s, %s, %s, %s)
"""
END = "SELECT durable_effect_end_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
RESOURCE = "SELECT durable_effect_resource_v1(%s, %s, %s, %s, %s, %s, %s, %s)"
RECONCILE = "SELECT durable_effect_reconcile_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
REUSE = "SELECT durable_effect_reuse_v1(%s, %s, %s, %s, %s, %s, %s)"
VOID = """
UPDATE durable_idempotencyrecord SET status = 'void'
WHERE operation_id = %s AND run_id = %s AND status = 'prepared'
"""
MOVE = "SELECT durable_record_move_v1(%s, %s, %s)"

Record = dict[str, Any]


def moving(operation_id: UUID, source: list[RecordStatus], to: RecordStatus) -> Statement:
    """The guarded move of a record, apart from its calls."""
    return Statement(sql=MOVE, params=(operation_id, [s.value for s in source], to.value))


def parameters(record: Mapping[str, Any]) -> dict[str, JSON]:
    """What was sent for a record, or would have been."""
    sent: dict[str, JSON] = json.loads(record["sent_request"] or record["proposed_request"])
    return sent
