"""`manage.py sandbox`: the outside services of the example shop."""

import sqlite3
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from examples.sandbox import __main__ as sandbox


class Command(BaseCommand):
    help = "Serve the sandbox of outside services (payments, carrier, mail) on 127.0.0.1."
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own interface

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8090, help="0 takes a free port")
        parser.add_argument(
            "--data", type=Path, required=True, help="its SQLite file, made if missing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            sandbox.run(options["data"], options["port"])
        except sqlite3.Error as problem:
            raise CommandError(f"{options['data']} cannot be used: {problem}") from None
        except (OSError, OverflowError) as problem:
            port = options["port"]
            raise CommandError(f"The sandbox cannot serve on port {port}: {problem}") from None
