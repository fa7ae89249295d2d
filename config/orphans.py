"""Run PostgreSQL after ending what an earlier postmaster of the same data left behind.

`python orphans.py DATA POSTGRES ARGUMENTS...`: a backend in the middle of a long query does not see
its postmaster die, and PostgreSQL refuses to start beside it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path


def orphans(data: Path, program: Path) -> Iterator[int]:
    """Yield each process that runs this program in this data folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            same = os.readlink(entry / "exe") == str(program.resolve())
            if same and os.readlink(entry / "cwd") == str(data.resolve()):
                yield int(entry.name)
        except OSError:
            # It ended while we looked, or belongs to somebody else.
            continue


def main(data: str, *command: str) -> None:
    """End the orphans, then become the command."""
    for process in orphans(Path(data), Path(command[0])):
        os.kill(process, signal.SIGKILL)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
