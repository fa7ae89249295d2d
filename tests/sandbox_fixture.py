"""The sandbox of outside services as a fixture: `sandbox`, one process for the whole session.

Give it to a test file with `from tests.sandbox_fixture import sandbox, sandbox_process`, or name
the module in `pytest_plugins`. The sandbox is emptied before each test that uses it.
"""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 20.0


class Sandbox:
    """A running sandbox: turn its switches, read its ledger."""

    def __init__(self, url: str) -> None:
        self.url = url

    def switch(self, service: str, behaviour: str, **options: Any) -> None:
        """Make a service misbehave.

        Options: operation ("charge", "lookup", ...), match (part of a key), seconds, retry_after
        (raw header), times (only the next N requests).
        """
        self._call("/switches", {"service": service, "behaviour": behaviour, **options})

    def ledger(self, **filters: str | int) -> list[dict[str, Any]]:
        """Every request received, oldest first: POSTs and look-ups alike.

        Filters: service, operation, method ("POST" or "GET"), key, run, applied (bool). An entry's
        status is a number or "never answered".
        """
        wanted = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in filters.items()
        }
        entries: list[dict[str, Any]] = []
        while True:
            after = str(entries[-1]["number"]) if entries else "0"
            page = self._call("/ledger", query={**wanted, "after": after, "limit": "1000"})
            entries += page
            if len(page) < 1000:
                return entries

    def summary(self) -> dict[str, Any]:
        """Counts per operation, and under "doubled" whatever was done more than once."""
        return dict(self._call("/ledger/summary"))

    def applied(self, operation: str, order_id: str | None = None) -> int:
        """How often an operation ("charge", "message", ...) took effect, for one order or in all.

        An order is known by the operation's business key (its order, charge, shipment) or by a
        part of the idempotency key between colons.
        """
        entries = self._call(f"/applied/{operation}")
        return sum(
            order_id is None
            or order_id == entry["business"]
            or order_id in re.split(r"[:/]", entry["key"])
            for entry in entries
        )

    def reset(self) -> None:
        """Forget everything, switches too, and let go of whoever waits for an answer."""
        self._call("/reset", {})

    def _call(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
    ) -> Any:
        address = f"{self.url}{path}"
        if query:
            address += f"?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(address, data, headers)  # noqa: S310 - loopback
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None


class SandboxProcess:
    """A sandbox in a process of its own, which a test may kill and start again."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._port = 0
        self.start()

    def start(self) -> None:
        """Start on the port of the last time, or on a free one."""
        command = [sys.executable, "-m", "examples.sandbox"]
        command += ["--port", str(self._port), "--data", str(self.data)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        address = re.search(r"http://\S+", self.process.stdout.readline())
        assert address, "the sandbox did not start"
        self.url = address[0]
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory runs out."""
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        """End it politely."""
        self.process.terminate()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(STOP_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture(scope="session")
def sandbox_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """The session's sandbox process; use `sandbox` unless you mean to look at the process."""
    with SandboxProcess(tmp_path_factory.mktemp("sandbox") / "sandbox.sqlite") as process:
        yield process


@pytest.fixture
def sandbox(
    sandbox_process: SandboxProcess, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sandbox]:
    """An empty sandbox; the settings of this process and of its children point to it."""
    settings.SANDBOX_URL = sandbox_process.url
    monkeypatch.setenv("SANDBOX_URL", sandbox_process.url)
    sandbox = Sandbox(sandbox_process.url)
    sandbox.reset()
    yield sandbox
    # Whoever still waits for an answer must not hold up the end of the session.
    sandbox.reset()
