"""The engine's own connections to PostgreSQL, beside Django's.

One autocommit connection per process for the journal and one for the heartbeat, opened after
fork. Every wait has an end: a hung server or network counts as a lost connection.
"""

from __future__ import annotations

from typing import Any

import psycopg
from django.db import connections
from psycopg.abc import PQGen

from durable import conf


class Link(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every wait ends after `patience` seconds."""

    patience: float = 10.0

    def wait(self, gen: PQGen[Any], interval: float = 0.1, timeout: float | None = None) -> Any:
        """Like psycopg's, but a silent server is an error and not a hang."""
        try:
            return super().wait(gen, interval, timeout or self.patience)
        except psycopg.errors._WaitTimeout as error:
            # The state of the statement is unknown: nobody may use this connection again.
            self.pgconn.finish()
            raise psycopg.OperationalError("the database did not answer in time") from error


def open_link(purpose: str) -> Link:
    """Open a connection to Django's default database. Raises psycopg.OperationalError."""
    parameters = connections["default"].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "pool"):
        parameters.pop(name, None)
    parameters["application_name"] = f"standfast {purpose}"
    link = Link.connect(**parameters, autocommit=True)
    link.patience = conf.lease_ttl().total_seconds()
    if conf.prepared_statements():
        link.prepare_threshold = 0
    else:
        link.prepare_threshold = None
    return link
