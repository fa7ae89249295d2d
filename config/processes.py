"""The processes of `manage.py up`: one supervisor that starts again whatever dies."""

import configparser
import io
import os
import shlex
import signal
import subprocess
import sys
import xmlrpc.client

from config import leash, readiness
from config.launch import Launch
from config.state import BASE_DIR, private_file

WORKERS = 2
STOP_SECONDS = 15

# What every program of ours has in common. `startretries` without end: a program that gives up
# stays dead although what it waited for has long come back.
PROGRAM = {
    "autorestart": "true",
    "startsecs": "1",
    "startretries": "1000000",
    "redirect_stderr": "true",
    "stdout_logfile_maxbytes": "10MB",
    "stdout_logfile_backups": "1",
    "killasgroup": "true",
}


def worker_names() -> list[str]:
    """Return the names under which the Celery workers answer."""
    return [f"worker{number}@standfast" for number in range(1, WORKERS + 1)]


class Supervisor:
    """The supervisord of one launch: a child of this process, and the parent of all others."""

    def __init__(self, launch: Launch, *, sandbox: bool) -> None:
        self.launch = launch
        self.sandbox = sandbox
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the supervisor, which at once starts PostgreSQL and the broker."""
        file = self.launch.state.folder / "supervisord.conf"
        private_file(file, configuration(self.launch, sandbox=self.sandbox))
        command = [sys.executable, "-m", "supervisor.supervisord", "--configuration", str(file)]
        self.process = subprocess.Popen(  # noqa: S603
            leash.command(command, end=signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            # Ctrl-C reaches everybody in the terminal's group; these are stopped in order.
            start_new_session=True,
        )

    def start_all(self) -> None:
        """Start what needs the servers and their tables: pages, workers, sandbox."""
        log = self.launch.state.log("supervisord")
        readiness.wait(self._has_started_all, name="The supervisor", log=log)

    def keep(self) -> None:
        """Start the supervisor again when it died; what it ran has died with it."""
        if self._has_died():
            self.start_all()

    def _has_died(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _has_started_all(self) -> bool:
        """Try once; it may be on its way up, or be killed once more."""
        if self._has_died():
            self.start()
        address = f"127.0.0.1:{self.launch.supervisor_port}"
        login = f"up:{self.launch.state.secret('supervisor')}"
        try:
            with xmlrpc.client.ServerProxy(f"http://{login}@{address}/RPC2") as remote:
                remote.supervisor.startAllProcesses(False)
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End everything, workers first and PostgreSQL last, within STOP_SECONDS."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def configuration(launch: Launch, *, sandbox: bool) -> str:
    """Return supervisord's configuration file."""
    parser = configparser.RawConfigParser()
    parser.read_dict(_own_sections(launch))
    for name, program in _servers(launch).items():
        parser[f"program:{name}"] = _program(launch, name, program)
    for name, program in _applications(launch, sandbox=sandbox).items():
        parser[f"program:{name}"] = {**_program(launch, name, program), "autostart": "false"}
    # One group, so that the workers are stopped side by side, and before all others.
    workers = ",".join(f"worker{number}" for number in range(1, WORKERS + 1))
    parser["group:workers"] = {"programs": workers, "priority": "50"}
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def _own_sections(launch: Launch) -> dict[str, dict[str, str]]:
    supervisord = {
        "nodaemon": "true",
        "silent": "true",
        "logfile": _literal(str(launch.state.log("supervisord"))),
        "pidfile": _literal(str(launch.state.folder / "supervisord.pid")),
        "umask": "077",
    }
    if os.geteuid() == 0:
        # Said, because supervisord otherwise warns at every start.
        supervisord["user"] = "root"
    return {
        "supervisord": supervisord,
        "inet_http_server": {
            "port": f"127.0.0.1:{launch.supervisor_port}",
            "username": "up",
            "password": launch.state.secret("supervisor"),
        },
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        },
    }


def _servers(launch: Launch) -> dict[str, dict[str, str]]:
    """Return what starts first and is stopped last."""
    programs = {}
    if launch.postgres:
        programs["postgres"] = {
            "command": _line(launch.postgres.command()),
            "priority": "10",
            # A fast shutdown: SIGTERM would wait for every client to leave.
            "stopsignal": "INT",
            "stopwaitsecs": "5",
        }
    if launch.valkey:
        programs["valkey"] = {
            "command": _line(launch.valkey.command()),
            "priority": "20",
            "stopwaitsecs": "1",
        }
    return programs


def _applications(launch: Launch, *, sandbox: bool) -> dict[str, dict[str, str]]:
    """Return what starts once the servers answer and the tables are there."""
    python, manage = sys.executable, str(BASE_DIR / "manage.py")
    web = [python, "-m", "gunicorn", "config.wsgi", "--config", "python:config.gunicorn"]
    worker = [
        *(python, "-m", "celery", "-A", "config", "worker"),
        *("--concurrency", "2", "--loglevel", "INFO", "--without-mingle", "--without-gossip"),
    ]
    programs = {
        "web": {
            "command": _line([*web, "--bind", f"127.0.0.1:{launch.web_port}"]),
            "priority": "40",
            "stopwaitsecs": "4",
        },
    }
    for number, name in enumerate(worker_names(), start=1):
        programs[f"worker{number}"] = {
            "command": _line([*worker, "--hostname", name]),
            "stopwaitsecs": "4",
        }
    if sandbox:
        data = str(launch.state.folder / "sandbox.sqlite3")
        serve = [python, manage, "sandbox", "--port", str(launch.sandbox_port), "--data", data]
        programs["sandbox"] = {
            "command": _line(serve),
            "priority": "30",
            "stopwaitsecs": "1",
        }
    return programs


def _program(launch: Launch, name: str, program: dict[str, str]) -> dict[str, str]:
    own = {
        "directory": _literal(str(BASE_DIR)),
        "stdout_logfile": _literal(str(launch.state.log(name))),
    }
    return {**PROGRAM, **own, **program}


def _line(command: list[str]) -> str:
    """Return the command, which ends with the supervisor, as one line of the file."""
    if "--pdeathsig" not in command:
        command = leash.command(command)
    return _literal(shlex.join(command))


def _literal(text: str) -> str:
    """Return the text such that supervisord, which expands `%(name)s`, reads it as it is."""
    return text.replace("%", "%%")
