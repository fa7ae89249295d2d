"""Processes that end with their parent, so that a killed parent leaves nothing behind (Linux)."""

import ctypes
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1


def command(command: list[str], end: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command such that the kernel sends it `end` when its parent dies.

    The parent is the *thread* that starts it. Without util-linux, the command as it was given.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", end.name.removeprefix("SIG"), *command] if setpriv else command


def hold(end: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process `end` when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, end, 0, 0, 0)
