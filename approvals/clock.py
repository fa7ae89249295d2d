"""The database's clock: the only one by which an approval is in time."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import connection
from django.db.models import DateTimeField, Func


class ClockTimestamp(Func):
    """The time of the comparison itself; `Now()` stands still while a statement waits."""

    template = "clock_timestamp()"
    output_field: ClassVar = DateTimeField()


def now() -> datetime:
    """What the database's clock says, in UTC."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        at: datetime = cursor.fetchone()[0]
    return at
