"""`manage.py orders FILE.jsonl`: start one fulfilment per order, once, however often it is run."""

import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError, connection
from tqdm import tqdm

from durable import runs
from durable.errors import StartKeyConflict
from examples.orders import BadLine, parse

# Seconds that the database may be away.
PATIENCE = 60.0


class Command(BaseCommand):
    help = "Start the workflow fulfil for each order of a JSON-lines file."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="one order a line")
        parser.add_argument("--user", help="the person who starts them (default: this command)")
        parser.add_argument("--tenant", help="whose orders they are")

    def handle(self, *args: Any, **options: Any) -> None:
        counts: Counter[str] = Counter()
        actor = _actor(options["user"])
        total = _count_lines(options["file"])
        lines = tqdm(_lines(options["file"]), total=total, unit="order", disable=None)
        for number, line in lines:
            try:
                counts[_patiently(line, number, actor, options["tenant"])] += 1
            except BadLine as problem:
                counts["bad"] += 1
                with tqdm.external_write_mode():
                    self.stderr.write(str(problem))
        self.stdout.write(
            f"started {counts['started']}, skipped {counts['skipped']}, bad {counts['bad']}"
        )
        if counts["bad"]:
            raise SystemExit(1)


def _actor(username: str | None) -> str:
    """Who asked for the charges: a person of that name may not approve them."""
    if username is None:
        return "system:orders"
    if not get_user_model()._default_manager.filter(username=username).exists():
        raise CommandError(f"there is no user {username!r}")
    return f"user:{username}"


def _patiently(line: str, number: int, actor: str, tenant: str | None) -> str:
    """Start one order, over a restart of the database: the start key makes a repeat harmless."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _start(line, number, actor, tenant)
        except (OperationalError, InterfaceError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _start(line: str, number: int, actor: str, tenant: str | None) -> str:
    """Start one order's run; say whether that was needed."""
    order = parse(line, number)
    order_id, name = order["order_id"], order["ship_to"]["name"]
    try:
        started = runs.start(
            "fulfil",
            order,
            actor=actor,
            key=order_id,
            tenant=tenant,
            goal=f"Fulfil order {order_id} of {name}: {order['total']} {order['currency']}",
        )
    except StartKeyConflict:
        message = f"order {order_id} was already started with other contents"
        raise BadLine(number, "", message) from None
    return "started" if started.created else "skipped"


def _count_lines(path: Path) -> int:
    """Read the file once, so that one that cannot be read to its end starts nothing."""
    return sum(1 for _ in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines that hold anything; CommandError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = _decode(path, number, raw)
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise CommandError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise CommandError(f"{path} is a directory, not a file of orders.") from None
    except OSError as problem:
        raise CommandError(f"{path} cannot be read: {problem.strerror}.") from None


def _decode(path: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8: line {number} cannot be read.") from None
