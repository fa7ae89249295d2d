"""`manage.py up`: the whole product on this machine, until Ctrl-C."""

import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import BaseCommand, CommandError, call_command, get_commands
from django.db import connection

from config import demo, launch, processes, readiness

READY_SECONDS = 60
SAMPLE_ORDERS = settings.BASE_DIR / "examples" / "data" / "orders.jsonl"


class Command(BaseCommand):
    """Run PostgreSQL, the broker, the web pages and two workers; start again what dies."""

    help = __doc__
    # PostgreSQL is not up yet when the command begins.
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Start everything, then watch until a signal, then stop everything."""
        begun = launch.begin()
        supervisor = processes.Supervisor(begun, sandbox="sandbox" in get_commands())
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        try:
            self.bring_up(begun, supervisor)
            while True:
                time.sleep(0.25)
                supervisor.keep()
        except KeyboardInterrupt:
            self.say("Stopping ...")
        except readiness.NotReady as error:
            raise CommandError(str(error)) from error
        finally:
            # A second Ctrl-C, or make's own, must not leave half of it running.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            supervisor.stop()
        self.say("Stopped.")

    def bring_up(self, begun: launch.Launch, supervisor: processes.Supervisor) -> None:
        """Start all processes in order and return when each of them is ready."""
        for note in begun.notes:
            self.say(note)
        self.start_servers(begun, supervisor)
        call_command("migrate", verbosity=0, interactive=False)
        call_command("collectstatic", verbosity=0, interactive=False)
        demo.invite(begun.state, begun.address)
        supervisor.start_all()
        self.wait_for_applications(begun, sandbox=supervisor.sandbox)
        self.send_sample_orders(begun)
        # The rest of this process watches; it needs no place at the database.
        connection.close()
        self.say(f"\nStandfast runs at {begun.address}")
        self.say(f"Logins are in {begun.state.logins}\nCtrl-C stops it.")

    def start_servers(self, begun: launch.Launch, supervisor: processes.Supervisor) -> None:
        """Start PostgreSQL and the broker, unless the environment named others."""
        if begun.postgres:
            begun.postgres.prepare()
        if begun.valkey:
            begun.valkey.prepare()
        supervisor.start()
        if begun.postgres:
            begun.postgres.wait_ready()
            self.ready("postgres", f"127.0.0.1:{begun.postgres.port}")
        if begun.valkey:
            begun.valkey.wait_ready()
            self.ready("valkey", f"127.0.0.1:{begun.valkey.port}")

    def wait_for_applications(self, begun: launch.Launch, *, sandbox: bool) -> None:
        """Return when pages, sandbox and workers answer."""
        probes: dict[str, tuple[str, Callable[[], bool]]] = {
            "web": (begun.address, lambda: readiness.answers(f"{begun.address}/readyz"))
        }
        if sandbox:
            probes["sandbox"] = (
                settings.SANDBOX_URL,
                lambda: readiness.accepts(begun.sandbox_port),
            )
        for number, worker in enumerate(processes.worker_names(), start=1):
            probes[f"worker{number}"] = (worker, functools.partial(readiness.works, worker))
        for name, (address, probe) in probes.items():
            readiness.wait(probe, name=name, log=begun.state.log(name), seconds=READY_SECONDS)
            self.ready(name, address)

    def send_sample_orders(self, begun: launch.Launch) -> None:
        """Give the example shop something to do, once; the rest runs on if that fails."""
        sent = begun.state.once("orders")
        if "orders" not in get_commands() or not SAMPLE_ORDERS.exists() or sent.exists():
            return
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "orders"]
        if subprocess.run([*command, str(SAMPLE_ORDERS)], check=False).returncode == 0:  # noqa: S603
            sent.touch()
        else:
            self.say(f"Not every sample order was started; `manage.py orders {SAMPLE_ORDERS}` can.")

    def ready(self, name: str, address: str) -> None:
        """Say that one part is ready."""
        self.say(f"{name:<12} ready   {address}")

    def say(self, line: str) -> None:
        """Print a line at once, also into a pipe."""
        self.stdout.write(line)
        self.stdout.flush()


def _interrupt(number: int, frame: object) -> NoReturn:
    """Treat a signal to end like Ctrl-C."""
    raise KeyboardInterrupt
