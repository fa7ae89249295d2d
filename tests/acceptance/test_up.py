"""`manage.py up` as its user meets it: everything starts, comes back when killed, and ends."""

import configparser
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.request
import xmlrpc.client
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from celery import Celery

from config import leash

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parent.parent.parent
# A killed process runs again within the first, and does its work within the second, which is long
# only for the sake of a machine that has much else to do.
BACK_SECONDS = 5
READY_SECONDS = 30
END_SECONDS = 20


def wait_until(true: Callable[[], bool], seconds: float, otherwise: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.05)


class Demo:
    """One running `manage.py up`, and what a person can find out about it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        # Neither the test session's servers nor its settings: a person's bare shell.
        told = {"DATABASE_URL", "BROKER_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE"}
        told |= {"INSECURE_HTTP", "HASHED_STATIC_FILES"}
        shell = {
            name: value
            for name, value in os.environ.items()
            if name not in told and not name.startswith("DURABLE_")
        }
        self.shell = {**shell, "STANDFAST_STATE": str(state)}

    def start(self) -> None:
        self.output: list[str] = []
        self.process = self.run_up()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        wait_until(lambda: "Ctrl-C stops it." in self.output, 120, self.said)
        lines = (self.state / "environment").read_text().splitlines()
        self.environment = dict(line.split("=", 1) for line in lines)

    def run_up(self) -> "subprocess.Popen[str]":
        # On a leash: a session that is killed must not leave a demo running.
        return subprocess.Popen(
            leash.command([sys.executable, "manage.py", "up"], end=signal.SIGTERM),
            cwd=ROOT,
            env=self.shell,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self) -> str:
        return "\n".join(self.output)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=END_SECONDS)
        self.reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output.append(line.rstrip("\n"))

    def logins(self) -> list[str]:
        """Who logs in with what, without the address, which may be another at each start."""
        return (self.state / "logins.txt").read_text().splitlines()[1:]

    @property
    def address(self) -> str:
        found = re.search(r"Standfast runs at (\S+)", self.said())
        assert found, self.said()
        return found[1]

    def pid(self, name: str) -> int:
        """The process of this name, as the supervisor knows it; 0 while it has none."""
        file = configparser.RawConfigParser()
        file.read(self.state / "supervisord.conf")
        server = file["inet_http_server"]
        address = f"http://up:{server['password']}@{server['port']}/RPC2"
        with xmlrpc.client.ServerProxy(address) as supervisor:
            processes = supervisor.supervisor.getAllProcessInfo()
        assert isinstance(processes, list)
        return next(int(process["pid"]) for process in processes if process["name"] == name)

    def wait_for(self, name: str) -> None:
        """Return when the process of this name does its work, or fail with its log."""
        log = self.state / "log" / f"{name}.log"
        wait_until(lambda: self.answers(name), READY_SECONDS, lambda: log.read_text()[-2000:])

    def answers(self, name: str) -> bool:
        """Whether the process of this name does its work."""
        try:
            return bool(getattr(self, f"_{name.rstrip('12')}")(name))
        except (OSError, psycopg.OperationalError, redis.ConnectionError):
            return False

    def _postgres(self, name: str) -> bool:
        with psycopg.connect(self.environment["DATABASE_URL"], connect_timeout=1) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)

    def _valkey(self, name: str) -> bool:
        with redis.Redis.from_url(self.environment["BROKER_URL"], socket_timeout=1) as client:
            return bool(client.ping())

    def _web(self, name: str) -> bool:
        # Any status but success raises.
        urllib.request.urlopen(f"{self.address}/readyz", timeout=2).close()  # noqa: S310
        return True

    def _sandbox(self, name: str) -> bool:
        port = int(self.environment["SANDBOX_URL"].rpartition(":")[2])
        return any(
            link.status == psutil.CONN_LISTEN and link.laddr.port == port
            for link in psutil.Process(self.pid(name)).net_connections(kind="tcp")
        )

    def _worker(self, name: str) -> bool:
        broker = self.environment["BROKER_URL"]
        with Celery(broker=broker, set_as_current=False) as app:
            return bool(app.control.ping(destination=[f"{name}@standfast"], timeout=0.5))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    demo = Demo(tmp_path_factory.mktemp("up") / "state")
    try:
        demo.start()
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)
        demo.reader.join()


EVERYTHING = ["postgres", "valkey", "sandbox", "web", "worker1", "worker2"]


def test_each_part_is_named_with_its_address_once_it_is_ready(demo: Demo) -> None:
    for name in EVERYTHING:
        assert re.search(rf"^{name} +ready +\S+", demo.said(), re.MULTILINE), demo.said()
        demo.wait_for(name)
    assert demo.address.startswith("http://localhost:")


def test_only_the_owner_reads_the_logins_and_the_secrets(demo: Demo) -> None:
    private = [demo.state / "logins.txt", demo.state / "environment", *demo.state.glob("secrets/*")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * len(private)
    assert "ana" in private[0].read_text()


def test_a_second_up_in_the_same_folder_says_that_one_is_running(demo: Demo) -> None:
    second = demo.run_up()
    said, _ = second.communicate(timeout=20)
    assert second.returncode == 1
    assert f"already runs in this folder (process {demo.process.pid})" in said


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_killed_process_is_back_within_seconds(demo: Demo, name: str) -> None:
    old = demo.pid(name)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: demo.pid(name) not in (0, old), BACK_SECONDS, demo.said)
    demo.wait_for(name)


def test_a_killed_pool_process_is_replaced(demo: Demo) -> None:
    master = psutil.Process(demo.pid("worker1"))
    before = {child.pid for child in master.children()}
    os.kill(min(before), signal.SIGKILL)
    wait_until(
        lambda: len({child.pid for child in master.children()} - before) == 1,
        BACK_SECONDS,
        lambda: "the pool stayed small",
    )


def test_a_query_that_outlives_its_postmaster_does_not_hold_up_the_next(demo: Demo) -> None:
    def count_for_ever() -> None:
        with psycopg.connect(demo.environment["DATABASE_URL"]) as connection:
            connection.execute("SELECT count(*) FROM generate_series(1, 100000000000)")

    def counting() -> None:
        try:
            count_for_ever()
        except psycopg.OperationalError:
            return

    client = threading.Thread(target=counting)
    client.start()
    time.sleep(0.5)
    os.kill(demo.pid("postgres"), signal.SIGKILL)
    demo.wait_for("postgres")
    client.join(timeout=READY_SECONDS)
    assert not client.is_alive()


def test_workers_outlast_a_broker_that_hangs(demo: Demo) -> None:
    broker = demo.pid("valkey")
    os.kill(broker, signal.SIGSTOP)
    time.sleep(3)
    os.kill(broker, signal.SIGCONT)
    demo.wait_for("worker1")
    demo.wait_for("worker2")


def test_a_killed_supervisor_is_back_with_all_it_ran(demo: Demo) -> None:
    old = {name: demo.pid(name) for name in EVERYTHING}
    [supervisor] = psutil.Process(demo.process.pid).children()
    supervisor.kill()

    def all_run() -> bool:
        try:
            return all(demo.pid(name) not in (0, old[name]) for name in EVERYTHING)
        except OSError:
            return False

    wait_until(all_run, BACK_SECONDS, demo.said)
    for name in EVERYTHING:
        demo.wait_for(name)


def test_what_was_stored_is_there_after_the_next_start(demo: Demo) -> None:
    logins = demo.logins()
    with psycopg.connect(demo.environment["DATABASE_URL"]) as connection:
        connection.execute("INSERT INTO auth_group (name) VALUES ('kept')")
    everybody = psutil.Process(demo.process.pid).children(recursive=True)
    assert len(everybody) > len(EVERYTHING)

    assert demo.end(signal.SIGTERM) == 0, demo.said()
    assert [process for process in everybody if process.is_running()] == []

    demo.start()
    assert demo.logins() == logins
    with psycopg.connect(demo.environment["DATABASE_URL"]) as connection:
        found = connection.execute("SELECT count(*) FROM auth_group WHERE name = 'kept'")
        assert found.fetchone() == (1,)


def test_ctrl_c_ends_everything_it_started(demo: Demo) -> None:
    everybody = psutil.Process(demo.process.pid).children(recursive=True)
    assert demo.end(signal.SIGINT) == 0, demo.said()
    assert [process for process in everybody if process.is_running()] == []
