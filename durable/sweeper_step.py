"""The sweeper as a part of every Celery worker; no separate beat process is needed."""

from __future__ import annotations

import logging
import threading
from typing import Any
from uuid import uuid4

from celery import bootsteps
from django.db import DatabaseError, connection

from durable import conf, sweeper

logger = logging.getLogger(__name__)


class SweeperStep(bootsteps.StartStopStep):
    """A thread that sweeps at every interval for as long as the worker lives."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = uuid4()

    def start(self, parent: Any) -> None:
        self._thread = threading.Thread(target=self._run, name="durable-sweeper", daemon=True)
        self._thread.start()

    def stop(self, parent: Any) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(conf.sweep_interval()):
            try:
                sweeper.sweep(self._owner)
            except DatabaseError as error:
                # Repeated, not one-shot: the next interval looks at everything again.
                logger.warning("sweep failed, trying again: %s", error)
                connection.close()
            except Exception:
                logger.exception("sweep failed, trying again")
                connection.close()
