"""The database's clock: the only one by which an approval is in time."""

from __future__ import annotations

from datetime import datetime

from django.db import connection


def now() -> datetime:
    """What the database's clock says, in UTC; not `now()`, which stands still in a transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        at: datetime = cursor.fetchone()[0]
    return at
