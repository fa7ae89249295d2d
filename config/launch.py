"""One start of `manage.py up`: the folder it holds, the ports it found, its environment."""

import errno
import functools
import os
import socket
from dataclasses import dataclass, field
from typing import TextIO

from config import servers
from config.state import State, private_file


@dataclass(kw_only=True)
class Launch:
    """What this start runs; a server is None when the environment names another one."""

    state: State
    # Open as long as this process holds the folder.
    lock: TextIO
    web_port: int
    sandbox_port: int
    supervisor_port: int
    postgres: servers.Postgres | None
    valkey: servers.Valkey | None
    # What the person who started it should know, such as a port that was taken.
    notes: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The web address, by the name localhost: a passkey is bound to a name."""
        return f"http://localhost:{self.web_port}"


@functools.cache
def begin() -> Launch:
    """Hold the folder, choose ports and set this process's environment; once per process.

    This comes before Django's settings, which read that environment.
    """
    state = State.here()
    lock = state.lock()
    notes: list[str] = []
    launch = Launch(
        state=state,
        lock=lock,
        web_port=free_port_from(8000, "the web pages", notes),
        sandbox_port=free_port_from(8090, "the sandbox of outside services", notes),
        supervisor_port=free_port_from(9010, "the supervisor", notes),
        postgres=None if "DATABASE_URL" in os.environ else _postgres(state, notes),
        valkey=None if "BROKER_URL" in os.environ else _valkey(state, notes),
        notes=notes,
    )
    os.environ.update(_environment(launch))
    return launch


def _postgres(state: State, notes: list[str]) -> servers.Postgres:
    return servers.Postgres(
        data=state.folder / "postgres",
        port=free_port_from(5433, "PostgreSQL", notes),
        password=state.secret("postgres"),
        log=state.log("postgres"),
    )


def _valkey(state: State, notes: list[str]) -> servers.Valkey:
    return servers.Valkey(
        folder=state.folder / "valkey",
        port=free_port_from(6380, "the broker", notes),
        password=state.secret("valkey"),
        log=state.log("valkey"),
    )


def _environment(launch: Launch) -> dict[str, str]:
    """Return the variables of every process, and leave them to other commands of this clone."""
    given = os.environ
    environment = {
        "SECRET_KEY": given.get("SECRET_KEY") or launch.state.secret("key"),
        "DATABASE_URL": launch.postgres.url if launch.postgres else given["DATABASE_URL"],
        "BROKER_URL": launch.valkey.url if launch.valkey else given["BROKER_URL"],
        "SANDBOX_URL": f"http://localhost:{launch.sandbox_port}",
        "STATIC_ROOT": str(launch.state.folder / "static"),
        # Plain http on the loopback; nobody else can reach it.
        "INSECURE_HTTP": "1",
    }
    lines = [f"{name}={value}\n" for name, value in environment.items()]
    private_file(launch.state.environment, "".join(lines))
    return environment


def free_port_from(wanted: int, purpose: str, notes: list[str]) -> int:
    """Return the wanted port, or the next free one and a note that says so."""
    port = next(port for port in range(wanted, wanted + 1000) if _is_free(port))
    if port != wanted:
        notes.append(f"Port {wanted} is taken; {purpose} will use {port}.")
    return port


def _is_free(port: int) -> bool:
    """Tell whether nobody listens on it, by either meaning of `localhost`."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as probe:
            # As the servers do, so that connections of the last start do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    return False
    return True
