"""One search over everything that has an id: paste what a log line or a colleague gave you."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import connection
from django.db.models import Q

from durable.models import Checkpoint, Event, IdempotencyRecord, Run

FoundKind = Literal["run", "event", "checkpoint", "operation", "question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that the searched text names."""

    kind: FoundKind
    run_id: UUID
    label: str
    seq: int | None = None
    id: UUID | None = None  # the operation or the question


_IN_LOG = re.compile(r"(evt|ckpt)_([0-9a-fA-F-]{32,36})_(\d{1,18})\Z")
_MOST_FOUND = 20


def find(text: str, *, tenant: str) -> list[Found]:
    """Return what the text names among a tenant's runs. At most 3 statements.

    It may be the id of a run, thread, event (evt_<run>_<seq>), checkpoint (ckpt_<run>_<seq>) or
    operation, an idempotency key, or the key that a run was started with.
    """
    text = text.strip()
    if not text or "\x00" in text:
        return []
    place = _IN_LOG.match(text)
    if place:
        return _find_in_log(place, tenant)
    try:
        id_ = UUID(text)
    except ValueError:
        id_ = None
    return [*(_find_id(id_, tenant) if id_ else []), *_find_text(text, tenant)][:_MOST_FOUND]


def _find_in_log(place: re.Match[str], tenant: str) -> list[Found]:
    try:
        run_id, seq = UUID(place[2]), int(place[3])
    except ValueError:
        return []
    if not Run.objects.filter(id=run_id, tenant=tenant).exists():
        return []
    if place[1] == "evt":
        there = Event.objects.filter(run_id=run_id, seq=seq).exists()
        kind: FoundKind = "event"
    else:
        there = Checkpoint.objects.filter(run_id=run_id, seq=seq).exists()
        kind = "checkpoint"
    return [Found(kind=kind, run_id=run_id, seq=seq, label=f"{kind} {seq}")] if there else []


def _find_id(id_: UUID, tenant: str) -> list[Found]:
    """Whatever has this id, in one statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT 'run', id, id, goal FROM durable_run
                WHERE id = %(id)s AND tenant = %(tenant)s
            UNION ALL SELECT 'operation', run_id, operation_id, operation
                FROM durable_idempotencyrecord WHERE operation_id = %(id)s AND tenant = %(tenant)s
            UNION ALL SELECT 'question', run.id, question.id, question.question
                FROM durable_interrupt AS question JOIN durable_run AS run
                ON run.id = question.run_id
                WHERE question.id = %(id)s AND run.tenant = %(tenant)s""",
            {"id": id_, "tenant": tenant},
        )
        found = cursor.fetchall()
    return [
        Found(kind=kind, run_id=run_id, id=None if kind == "run" else other, label=label)
        for kind, run_id, other, label in found
    ]


def _find_text(text: str, tenant: str) -> list[Found]:
    """Runs with a start key or of a thread, and outside actions with a key. 2 statements."""
    named = Q(start_key=text) | Q(thread_id=text)
    runs = Run.objects.filter(named, tenant=tenant).order_by("-created_at")
    records = IdempotencyRecord.objects.filter(key=text, tenant=tenant).order_by("-created_at")
    return [
        *(
            Found(kind="operation", run_id=record.run_id, id=record.operation_id, label=str(record))
            for record in records.only("run_id", "operation", "key")[:_MOST_FOUND]
        ),
        *(
            Found(kind="run", run_id=run.id, label=run.goal or run.workflow)
            for run in runs.only("goal", "workflow")[:_MOST_FOUND]
        ),
    ]
