"""Health: `/healthz` says that this process lives, `/readyz` that it can do its work."""

from collections.abc import Callable, Iterator

import kombu
from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from durable import conf, snapshots


class NotReady(Exception):
    """This process cannot do its work yet."""


def database() -> str:
    """Say which PostgreSQL answers; refuse one that forgets commits."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version'), current_setting('fsync')")
        version, fsync = cursor.fetchone()
    if fsync != "on":
        raise NotReady("fsync is off: committed steps would be lost in a crash; turn it on")
    return f"PostgreSQL {version}"


def migrations() -> str:
    """Say that the tables are those this code was written for."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        names = ", ".join(str(migration) for migration, _ in plan)
        raise NotReady(f"migrations are not applied: {names}; run `manage.py migrate`")
    return "all applied"


def broker() -> str:
    """Say that the broker answers within a second."""
    # A broker that is frozen, not gone, accepts the connection and then says nothing.
    patience = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0, "max_retries": 0}
    with kombu.Connection(
        settings.BROKER_URL, connect_timeout=1, transport_options=patience
    ) as link:
        link.ensure_connection(max_retries=1, timeout=1)
    return link.transport_cls or "connected"


def sweeper() -> str:
    """Say when a worker last looked for lost work; refuse one that has stopped looking."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp(), (SELECT max(swept_at) FROM durable_sweeper)")
        now, swept_at = cursor.fetchone()
    if swept_at is None:
        # A new installation: its pages must be up before its first worker is.
        return "no worker has swept yet"
    age = f"swept {(now - swept_at).total_seconds():.0f} s ago"
    if snapshots.sweep_is_late(swept_at, now, interval=conf.sweep_interval()):
        raise NotReady(f"{age}: no worker looks for lost work; start one")
    return age


CHECKS: dict[str, Callable[[], str]] = {
    "database": database,
    "migrations": migrations,
    "broker": broker,
    "sweeper": sweeper,
}


def run_checks() -> Iterator[dict[str, object]]:
    """Run every check, the later ones even when an earlier one fails."""
    for name, check in CHECKS.items():
        try:
            detail, ok = check(), True
        except Exception as error:
            # Any failure is the answer here, and only its first line: no traceback leaves.
            detail, ok = str(error).strip().partition("\n")[0] or type(error).__name__, False
        yield {"name": name, "ok": ok, "detail": detail}


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer as long as this process serves requests at all."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when every check passes, else 503; both name each check."""
    checks = list(run_checks())
    ready = all(check["ok"] for check in checks)
    return JsonResponse({"ready": ready, "checks": checks}, status=200 if ready else 503)
