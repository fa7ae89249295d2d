"""A worker that dies at a chosen write, without a process: everything after it is never reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from durable import journal as journals
from durable.journal import APPEND, HOLD, Journal


class Crash(BaseException):
    """The process is gone. Nothing in the engine may know this class."""


class _Death:
    """Counts the writes that match, and kills at the chosen one; the dead write no more."""

    def __init__(self, at: str, when: str, nth: int) -> None:
        self.at, self.when, self.left = at, when, nth
        self.dead = False
        self.seen: list[str] = []

    def around(self, original: Any, describe: Any) -> Any:
        def write(journal: Journal, *args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Crash
            what = describe(*args, **kwargs)
            hit = self._hits(what)
            if hit and self.when == "before":
                self._die()
            result = original(journal, *args, **kwargs)
            if hit:
                self._die()
            return result

        return write

    def _hits(self, what: str) -> bool:
        self.seen.append(what)
        if self.at not in what:
            return False
        self.left -= 1
        return self.left == 0

    def _die(self) -> None:
        self.dead = True
        raise Crash


def _statements(*statements: Any) -> str:
    return " ".join(f"{statement.sql} {statement.params}" for statement in statements)


WRITES: dict[str, Any] = {
    "append": lambda fence, fact, *, sync: f"{APPEND} {fact.type.value} {fact.payload}",
    "write": lambda fence, *statements: _statements(*statements),
    "call": lambda fence, function, params, *, events: f"{function} {params}",
    "join": lambda fence, statements: f"join {HOLD} {_statements(*statements)}",
    "joined": lambda fence, *, written, sent: "joined",
}


@contextmanager
def crash(*, at: str = "", when: str = "after", nth: int = 1) -> Iterator[_Death]:
    """Die `when` ("before" or "after") the `nth` write whose SQL or parameters contain `at`.

    The run keeps its lease, as a dead worker's does. Fails when no such write came.
    """
    death = _Death(at, when, nth)
    patches = [
        patch.object(Journal, name, death.around(getattr(Journal, name), describe))
        for name, describe in WRITES.items()
    ]
    for patched in patches:
        patched.start()
    try:
        yield death
    except Crash:
        pass
    finally:
        for patched in patches:
            patched.stop()
        journals.journal().close()
    if not death.dead:
        raise AssertionError(f"no write number {nth} with {at!r} among {len(death.seen)}")
