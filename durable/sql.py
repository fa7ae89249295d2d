"""SQL on Django's connection, in the caller's transaction: for what the ORM cannot say."""

from __future__ import annotations

from typing import Any

from django.db import connection


def rows(statement: str, *params: object) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows; none for a statement without a result."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)  # type: ignore[arg-type]  # psycopg adapts more
        return list(cursor.fetchall()) if cursor.description else []


def value(statement: str, *params: object) -> Any:
    """Run one statement and return the first column of its first row; None without a row."""
    found = rows(statement, *params)
    return found[0][0] if found else None
