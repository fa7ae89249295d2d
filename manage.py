#!/usr/bin/env python
"""The command line of the project: `manage.py up` runs all of it on this machine."""

import os
import sys
from pathlib import Path

import environ

STATE = Path(os.environ.get("STANDFAST_STATE", Path(__file__).resolve().parent / ".standfast"))


def main() -> None:
    """Run one command; without a DATABASE_URL it speaks to the demo that `manage.py up` runs."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    if "DATABASE_URL" not in os.environ and (STATE / "environment").exists():
        environ.Env.read_env(STATE / "environment")

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
