#!/usr/bin/env python
"""The command line of the project: `manage.py up` runs all of it on this machine."""

import os
import sys

from config import launch, state


def main() -> None:
    """Run one command; outside of `up`, speak to the demo unless DATABASE_URL says otherwise."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    # Both before Django's settings, which read the environment once.
    if sys.argv[1:2] == ["up"]:
        try:
            launch.begin()
        except state.AlreadyRunning as running:
            sys.exit(str(running))
    else:
        state.load()

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
