"""The sweeper and a relay as a part of every Celery worker; no separate beat process is needed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from celery import bootsteps
from django.db import DatabaseError, connection

from durable import conf, outbox, sweeper

logger = logging.getLogger(__name__)


class SweeperStep(bootsteps.StartStopStep):
    """Two threads that sweep and relay at every interval for as long as the worker lives.

    Two, because a consumer may hang and a sweep must not; a relay, because the broker may be away.
    """

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._relay_thread: threading.Thread | None = None
        self._owner = uuid4()

    def start(self, parent: Any) -> None:
        self._thread = self._start("durable-sweeper", lambda: sweeper.sweep(self._owner))
        self._relay_thread = self._start("durable-relay", self._relay)

    def stop(self, parent: Any) -> None:
        self._stop.set()

    def _start(self, name: str, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=self._repeat, args=[work], name=name, daemon=True)
        thread.start()
        return thread

    def _relay(self) -> None:
        while outbox.relay() and not self._stop.is_set():
            pass  # until nothing is left, or a backlog would take hours

    def _repeat(self, work: Callable[[], object]) -> None:
        while not self._stop.wait(conf.sweep_interval()):
            _survive(work)
        connection.close()


def _survive(work: Callable[[], object]) -> None:
    # Repeated, not one-shot: the next interval looks at everything again.
    try:
        work()
    except DatabaseError as error:
        logger.warning("%s failed, trying again: %s", threading.current_thread().name, error)
    except BaseException:  # SystemExit of a consumer would end the thread without a word
        logger.exception("%s failed, trying again", threading.current_thread().name)
    else:
        return
    with suppress(Exception):
        connection.close()
