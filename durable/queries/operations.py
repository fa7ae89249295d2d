"""What an operator looks at: everything that needs one, and whether work is being found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from durable import conf, snapshots
from durable.models import IdempotencyRecord, InboxItem, Interrupt, OutboxMessage, Run, Sweeper
from durable.queries import counts, effects, run_lists
from durable.queries.counts import PAGE, Bounded
from durable.queries.run_lists import RunRow, View
from durable.statuses import InterruptStatus, RunStatus

# A run that is due is taken within moments; later than this somebody should know.
LATE = 30  # seconds

# Each half from its own partial index: an OR over both tables, or a clock that moves within the
# statement, would read a million runs.
_STUCK = """
(SELECT run.id FROM durable_lease AS lease JOIN durable_run AS run ON run.id = lease.run_id
    WHERE run.tenant = %s AND lease.owner IS NOT NULL
    AND lease.expires_at < statement_timestamp() - make_interval(secs => %s) LIMIT %s)
UNION ALL
(SELECT id FROM durable_run WHERE tenant = %s AND wake_at IS NOT NULL
    AND wake_at < statement_timestamp() - make_interval(secs => %s) ORDER BY wake_at LIMIT %s)
"""
_NOT_SENT = """
(SELECT id FROM durable_outboxmessage WHERE status = 'dead' ORDER BY id DESC LIMIT %s)
UNION ALL
(SELECT id FROM durable_outboxmessage WHERE status IN ('pending', 'sending')
    ORDER BY next_at LIMIT %s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Everything that needs an operator, each list bounded."""

    now: datetime
    blocked: list[RunRow]
    blocked_count: Bounded
    unknown: list[IdempotencyRecord]
    stuck: list[RunRow]  # lease expired, or due and not taken
    received: list[InboxItem]
    questions: list[Interrupt]
    sweeper: Sweeper | None
    sweep_is_late: bool
    outbox: list[OutboxMessage]
    outbox_pending: Bounded
    outbox_dead: Bounded


def operations(*, tenant: str, size: int = PAGE) -> Operations:
    """Return what the operations page shows. 8 statements."""
    views, now, _ = run_lists.count_views(tenant)
    sweeper = Sweeper.objects.first()
    runs = Run.objects.filter(tenant=tenant)
    blocked = _blocked_runs(runs, size)
    # Sorted here: asked for an order, PostgreSQL walks the million runs in it.
    stuck = sorted(
        run_lists.with_lease(
            runs.filter(
                id__in=RawSQL(_STUCK, [tenant, LATE, size, tenant, LATE, size])  # noqa: S611
            )
        ),
        key=lambda run: run.created_at,
    )
    unknown = effects.unknown_records(tenant=tenant, size=size)
    received = _received_items(tenant=tenant, size=size)
    pending, dead, outbox = _outbox(size)
    questions = Interrupt.objects.filter(
        status=InterruptStatus.OPEN, run__tenant=tenant, run__status=RunStatus.WAITING
    )
    return Operations(
        now=now,
        blocked=[run_lists.row(run, now) for run in blocked],
        blocked_count=views[View.NEEDS_OPERATOR],
        unknown=unknown,
        stuck=[run_lists.row(run, now) for run in stuck[:size]],
        received=received,
        questions=list(questions.select_related("run").order_by("created_at")[:size]),
        sweeper=sweeper,
        sweep_is_late=snapshots.sweep_is_late(
            sweeper.swept_at if sweeper else None,
            now,
            interval=conf.sweep_interval(),
        ),
        outbox=outbox,
        outbox_pending=pending,
        outbox_dead=dead,
    )


def _blocked_runs(runs: QuerySet[Run], size: int) -> list[Run]:
    """The blocked among `runs`, newest first. 1 statement."""
    blocked = runs.filter(status=RunStatus.BLOCKED)
    return list(run_lists.with_lease(blocked).order_by("-created_at")[:size])


def _received_items(*, tenant: str, size: int) -> list[InboxItem]:
    """Facts from outside that no worker has taken yet, oldest first. 1 statement."""
    runs = Run.objects.filter(tenant=tenant)
    waiting = InboxItem.objects.filter(moved_seq__isnull=True, run_id__in=runs.values("id"))
    return list(waiting.order_by("id")[:size])


def _outbox(size: int) -> tuple[Bounded, Bounded, list[OutboxMessage]]:
    """Bounded counts of waiting and dead messages, and the oldest of both. 2 statements."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT
                (SELECT count(*) FROM (SELECT 1 FROM durable_outboxmessage
                    WHERE status IN ('pending', 'sending') LIMIT %(most)s) AS found),
                (SELECT count(*) FROM (SELECT 1 FROM durable_outboxmessage
                    WHERE status = 'dead' LIMIT %(most)s) AS found)""",
            {"most": counts.MOST_COUNTED + 1},
        )
        pending, dead = (counts.bounded(number) for number in cursor.fetchone())
    not_sent = OutboxMessage.objects.filter(
        id__in=RawSQL(_NOT_SENT, [size, size])  # noqa: S611
    )
    return pending, dead, list(not_sent.defer("payload").order_by("next_at")[:size])
