"""What `manage.py up` keeps between two starts: secrets, data and logs."""

import fcntl
import os
import secrets
from pathlib import Path
from typing import Self, TextIO

import environ

BASE_DIR = Path(__file__).resolve().parent.parent


class AlreadyRunning(Exception):
    """Another `manage.py up` runs in this folder; use it, or stop it first."""


def private_file(path: Path, content: str) -> None:
    """Write a file that only its owner reads, from its first moment, and whole or not at all."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
    unfinished.rename(path)


class State:
    """The folder `.standfast`, or the one that STANDFAST_STATE names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def here(cls) -> Self:
        """Return the folder of this clone."""
        return cls(Path(os.environ.get("STANDFAST_STATE", BASE_DIR / ".standfast")).resolve())

    @property
    def environment(self) -> Path:
        """The variables under which the last `up` runs, for other commands in this clone."""
        return self.folder / "environment"

    @property
    def logins(self) -> Path:
        """The demo people with their passwords."""
        return self.folder / "logins.txt"

    def log(self, name: str) -> Path:
        """Return where the process of this name writes its log."""
        return self.folder / "log" / f"{name}.log"

    def secret(self, name: str) -> str:
        """Return a random secret, made when it is first asked for."""
        path = self.folder / "secrets" / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            private_file(path, secrets.token_urlsafe(48 if name == "key" else 12))
        return path.read_text()

    def once(self, name: str) -> Path:
        """Return the marker of a thing that is done once for this data."""
        return self.folder / f"{name}.done"

    def lock(self) -> TextIO:
        """Take this folder for as long as the returned file is open, or raise AlreadyRunning."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "log").mkdir(exist_ok=True)
        lock = (self.folder / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with lock:
                lock.seek(0)
                holder = lock.read().strip()
            raise AlreadyRunning(
                f"Standfast already runs in this folder (process {holder}); "
                f"its address and logins are in {self.logins}."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock


def load() -> None:
    """Let a command outside `up` speak to the demo of this clone, unless told whom to speak to."""
    file = State.here().environment
    if "DATABASE_URL" not in os.environ and file.exists():
        environ.Env.read_env(file)
