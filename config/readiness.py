"""Waiting for processes: each probe tells whether one kind of process answers."""

import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from config.celery import app


class NotReady(Exception):
    """A process did not get ready in time; its log says why."""


def wait(probe: Callable[[], bool], *, name: str, log: Path, seconds: float = 30) -> None:
    """Return when the probe says yes; NotReady, with the end of the log, when it does not."""
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise NotReady(f"{name} is not ready after {seconds:.0f} s. The end of {log}:\n{tail}")
        time.sleep(0.05)


def accepts(port: int) -> bool:
    """Tell whether something listens on this port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Tell whether a web server answers this request with success."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        # Refused, reset, timed out, or an error status.
        return False


def works(worker: str) -> bool:
    """Tell whether the Celery worker of this name answers."""
    return bool(app.control.ping(destination=[worker], timeout=1.0))
