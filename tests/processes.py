"""Real workers and web servers for a test, which it may kill, freeze and start again.

`workers` are two Celery workers on the session's test database, shared by a folder's tests; each
test finds them alive, without faults, with an empty broker and empty tables.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psutil
import pytest
import redis
from django.db import OperationalError, connection, connections

from config import leash, servers
from tests.sandbox_fixture import Sandbox, SandboxProcess
from tests.scenarios import crashing

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
POLL_SECONDS = 0.05
# Seconds: short as in tests/conftest.py, those of production in `make test-long`.
TTL = float(os.environ.get("DURABLE_LEASE_TTL", "2"))
SWEEP = float(os.environ.get("DURABLE_SWEEP_INTERVAL", "0.5"))
# How much longer than with the short lengths anything may take.
PATIENCE = max(1.0, TTL / 2)
# A broker that is away, or whose connections were cut, leaves this in a log.
AWAY = r"(kombu|redis)\.exceptions\.\w*Error|ConnectionRefusedError"
# A process that was killed on purpose leaves this in its master's log, up to ten seconds later.
KILLED = "WorkerLostError: (Worker exited prematurely: signal 9|Could not start worker processes)"

# What processes say while their database is away on purpose.
GONE = (
    r"terminating connection|server closed the connection|connection refused|Connection refused"
    r"|the database system is|connection is closed|the connection is lost|consuming input failed"
    r"|connection failed|connection is bad|AdminShutdown|CrashShutdown"
)


def wait_until(true: Callable[[], Any], seconds: float, otherwise: Callable[[], object]) -> Any:
    """Poll until `true()` is truthy and return it; fail with `otherwise()` after `seconds`.

    `seconds` is for the short lengths; `make test-long` waits longer.
    """
    deadline = time.monotonic() + seconds * PATIENCE
    while not (value := true()):
        assert time.monotonic() < deadline, otherwise()
        time.sleep(POLL_SECONDS)
    return value


def stays(true: Callable[[], Any], seconds: float, otherwise: Callable[[], object]) -> None:
    """Watch for `seconds` that `true()` never becomes false."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert true(), otherwise()
        time.sleep(POLL_SECONDS)


def database_url(host: str | None = None, port: int | None = None) -> str:
    """The address of the test database, perhaps through another port."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    credentials = parts.netloc.rpartition("@")[0]
    place = f"{host or parts.hostname}:{port or parts.port}"
    name = connections["default"].settings_dict["NAME"]
    return urlunsplit(parts._replace(netloc=f"{credentials}@{place}", path=f"/{name}"))


class Process:
    """A process that this test session started, alone in its group, with its own log."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path):
        self.name = name
        self.command = command
        self.environment = environment
        self.log_file = log
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self.popen = subprocess.Popen(
                leash.command(self.command),
                cwd=ROOT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    def children(self) -> list[psutil.Process]:
        """The processes that it forked: its pool, or its web workers."""
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to everybody it forked."""
        if self.alive:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        self.signal(signal.SIGKILL)
        if self.popen is not None:
            self.popen.wait(timeout=10)

    def kill_master(self) -> None:
        """SIGKILL to the first process only; the kernel ends those it forked."""
        assert self.popen is not None
        orphans = self.children()
        os.kill(self.pid, signal.SIGKILL)
        self.popen.wait(timeout=10)
        psutil.wait_procs(orphans, timeout=10)

    def stop(self) -> None:
        """End it politely, or else."""
        if not self.alive:
            return
        assert self.popen is not None
        self.signal(signal.SIGCONT)
        os.kill(self.pid, signal.SIGTERM)
        try:
            self.popen.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def forget_log(self) -> None:
        """Empty the log, so that a test reads only its own."""
        if self.log_file.exists():
            os.truncate(self.log_file, 0)


class Worker(Process):
    """One Celery worker with two pool processes."""

    def __init__(self, name: str, ground: "Ground", **environment: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", "config", "worker"]
        command += ["--concurrency", "2", "--without-mingle", "--without-gossip"]
        command += ["--hostname", f"{name}@scenario", "--loglevel", "INFO"]
        super().__init__(name, command, {**ground.environment(), **environment}, ground.log(name))

    def wait_ready(self) -> None:
        wait_until(lambda: " ready." in self.log() or not self.alive, START_SECONDS, self.log)
        assert self.alive, self.log()


class Web(Process):
    """One web server."""

    def __init__(self, ground: "Ground", **environment: str) -> None:
        self.port = servers.free_port()
        command = [sys.executable, "-m", "gunicorn", "config.wsgi", "--workers", "1"]
        command += ["--config", "python:config.gunicorn", "--bind", f"127.0.0.1:{self.port}"]
        super().__init__("web", command, {**ground.environment(), **environment}, ground.log("web"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        wait_until(self._answers, START_SECONDS, self.log)

    def _answers(self) -> bool:
        try:
            address = f"{self.url}/healthz"
            with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - loopback
                return bool(answer.status == 200)
        except OSError:
            assert self.alive, self.log()
            return False


class Ground:
    """The folders that the processes of the session share with its tests."""

    def __init__(self, folder: Path, sandbox_url: str) -> None:
        self.folder = folder
        self.sandbox_url = sandbox_url
        self.faults = folder / "faults"
        self.notes = folder / "notes"
        self.logs = folder / "logs"
        for each in (self.faults, self.notes, self.logs):
            each.mkdir()

    def environment(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": database_url(),
            "DURABLE_LEASE_TTL": str(TTL),
            "DURABLE_SWEEP_INTERVAL": str(SWEEP),
            "PYTHONPATH": str(ROOT),
            "SANDBOX_URL": self.sandbox_url,
            "SCENARIO_NOTES": str(self.notes),
            "SCENARIO_MAX_ATTEMPTS": "3",
            crashing.VARIABLE: str(self.faults),
        }

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def clear(self) -> None:
        for folder in (self.faults, self.notes):
            for path in folder.iterdir():
                path.unlink()

    def pause_sweeps(self) -> None:
        (self.faults / "paused").touch()

    def resume_sweeps(self) -> None:
        (self.faults / "paused").unlink(missing_ok=True)

    def noted(self, name: str) -> list[str]:
        """The lines that workflows left under this name, oldest first."""
        path = self.notes / name
        return path.read_text().splitlines() if path.exists() else []

    def open_gate(self, name: str) -> None:
        (self.notes / name).touch()


class Workers:
    """The workers of one folder's tests."""

    def __init__(
        self, ground: Ground, names: tuple[str, ...] = ("one", "two"), **environment: str
    ) -> None:
        self.ground = ground
        self.all = [Worker(name, ground, **environment) for name in names]
        self.provoked: set[str] = set()  # what their logs may hold, on purpose

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.all)

    def __getitem__(self, index: int) -> Worker:
        return self.all[index]

    def ready(self) -> None:
        """Start whoever is not there, all at once, and wait until they take work."""
        missing = [worker for worker in self if not worker.alive]
        for worker in missing:
            worker.forget_log()
            worker.start()
        for worker in missing:
            worker.wait_ready()

    def pool(self) -> list[psutil.Process]:
        """Every pool process there is."""
        return [child for worker in self if worker.alive for child in worker.children()]

    def crash_at(self, point: str, match: str = "") -> Path:
        """Kill the first pool process that comes to `point` with such a key, once."""
        self.provoked.add(KILLED)
        return crashing.plan(self.ground.faults, point, match)

    def kill_one(self, pid: int) -> None:
        """SIGKILL to one pool process."""
        self.provoked.add(KILLED)
        os.kill(pid, signal.SIGKILL)

    def freeze_at(self, point: str, match: str = "") -> Path:
        """Stop the first pool process that comes there; `thaw` lets it go on."""
        return crashing.plan(self.ground.faults, point, match, deed="freeze")

    def delay_at(self, point: str, match: str = "", seconds: float = 0.5) -> Path:
        return crashing.plan(self.ground.faults, point, match, deed="delay", seconds=seconds)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Freeze them all while the block runs, so that others have the work for themselves."""
        self.provoked.add(AWAY)
        for worker in self:
            worker.signal(signal.SIGSTOP)
        # Or the broker would hand the next messages to the frozen ones, which wait for them.
        with broker() as client:
            for waiting in client.client_list():
                if waiting["cmd"] == "brpop":
                    client.client_kill(waiting["addr"])
        try:
            yield
        finally:
            for worker in self:
                worker.signal(signal.SIGCONT)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Start them for the block, and end them with it."""
        for worker in self:
            worker.forget_log()
        try:
            self.ready()
            yield
        finally:
            self.kill()

    def stop(self) -> None:
        for worker in self:
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
        for worker in self:
            worker.stop()

    def kill(self) -> None:
        for worker in self:
            worker.kill()

    def quiet(self) -> None:
        """Let nobody touch the tables, which are about to be emptied."""
        self.ground.pause_sweeps()
        for worker in self:
            worker.signal(signal.SIGCONT)
        empty_broker()
        try:
            wait_until(_nobody_works, 3, lambda: "somebody still works")
        except AssertionError:
            self.kill()


def happened(marker: Path, seconds: float = 20.0) -> int:
    """Wait until a planned fault has happened; returns the process that suffered it."""
    wait_until(marker.exists, seconds, lambda: f"{marker.name} did not happen")
    return int(marker.read_text())


def thaw(marker: Path) -> None:
    """Let a frozen process go on."""
    os.kill(int(marker.read_text()), signal.SIGCONT)


def broker() -> "redis.Redis":
    """The session's broker."""
    return redis.Redis.from_url(os.environ["BROKER_URL"], socket_timeout=5)


def empty_broker() -> None:
    with broker() as client:
        client.flushall()


def _nobody_works() -> bool:
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM durable_lease"
            " WHERE owner IS NOT NULL AND expires_at > clock_timestamp()"
        )
        held = cursor.fetchone()[0]
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'"
        )
        busy = cursor.fetchone()[0]
    return not held and not busy


# Runs ------------------------------------------------------------------------------------------

RESTLESS = """
SELECT run.id, run.workflow, run.status, run.waiting_for, run.wake_at, lease.owner
FROM durable_run AS run JOIN durable_lease AS lease ON lease.run_id = run.id
WHERE run.id = ANY (%s) AND run.status NOT IN ('succeeded', 'failed', 'cancelled')
    AND NOT (run.status IN ('blocked', 'waiting') AND lease.owner IS NULL
        AND (run.wake_at IS NULL OR run.wake_at > clock_timestamp() + interval '1 minute')
        AND NOT EXISTS (SELECT 1 FROM durable_inboxitem AS item
            WHERE item.run_id = run.id AND item.moved_seq IS NULL))
"""


def restless(run_ids: list[UUID]) -> list[tuple[Any, ...]]:
    """The runs that have something to do, now or within a minute."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(RESTLESS, [run_ids])
            return list(cursor.fetchall())
    except OperationalError:
        connection.close()
        return [("the database is away",)]


def settle(run_ids: list[UUID], seconds: float = 30.0) -> None:
    """Wait until every run has ended, is blocked, or waits for somebody."""
    wait_until(lambda: not restless(run_ids), seconds, lambda: f"not at rest: {restless(run_ids)}")


# Fixtures ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def ground(
    tmp_path_factory: pytest.TempPathFactory,
    django_db_setup: None,
    sandbox_process: SandboxProcess,
) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"), sandbox_process.url)


CREWS = pytest.StashKey[list[Workers]]()


@pytest.fixture(scope="session")
def crew(request: pytest.FixtureRequest, ground: Ground) -> Iterator[Workers]:
    """The workers of a folder's tests; `workers` gives them to a test."""
    crew = Workers(ground)
    request.session.stash.setdefault(CREWS, []).append(crew)
    yield crew
    crew.stop()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop them after the folder's last test: others would find their runs taken by workers."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        for crew in item.session.stash.get(CREWS, []):
            crew.stop()


@pytest.fixture
def workers(transactional_db: None, sandbox: Sandbox, crew: Workers) -> Iterator[Workers]:
    """Two workers, alive, with nothing to do and nothing that will go wrong."""
    empty_broker()
    crew.ground.clear()
    for worker in crew:
        worker.forget_log()
    crew.ready()
    yield crew
    crew.quiet()


@pytest.fixture
def check(sandbox: Sandbox, workers: Workers) -> Callable[..., None]:
    """The checks after every scenario, for these workers and this sandbox."""
    from tests.after import after_checks  # a conftest is read before Django's set-up

    def check(*injected: str, **options: Any) -> None:
        known = (*injected, *workers.provoked)
        after_checks(sandbox, list(workers), injected=known, **options)

    return check


@pytest.fixture
def web(transactional_db: None, sandbox: Sandbox, ground: Ground) -> Iterator[Web]:
    """A web server."""
    web = Web(ground)
    web.forget_log()
    web.start()
    web.wait_ready()
    yield web
    web.stop()
