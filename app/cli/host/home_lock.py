"""One `stoker up` a home: a lock file that says who holds it."""

import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from app.cli.failures import CommandFailed, ExitCode

if TYPE_CHECKING:
    from app.settings import Settings

END_MARGIN_SECONDS = 60.0
# A look at the lock is over after much less.
LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class LockHolder:
    """The process that holds a home."""

    pid: int
    home: Path

    def refused(self) -> CommandFailed:
        """What a second `stoker up` ends with."""
        return CommandFailed(
            f"`stoker up` already runs for {self.home} (process {self.pid}). `stoker down` ends "
            "it; a second service needs a home of its own: stoker up --home FOLDER --port 0",
            code="already_running",
        )


@contextmanager
def making(home: Path) -> Iterator[None]:
    """Around what makes the home or a first file in it: a failure says what to do."""
    try:
        yield
    except OSError as error:
        raise CommandFailed(
            f"{home} cannot be used as the service's home ({error.strerror}): database, token and "
            "checkpoints lie there. Choose a folder that you may write to, on a disk with room: "
            "stoker up --home FOLDER, or STOKER_HOME for all commands."
        ) from None


class HomeLock:
    """Held while `stoker up` runs; the kernel releases it however the process ends."""

    def __init__(self, settings: "Settings") -> None:
        self._home = settings.home
        self._file = -1

    def __enter__(self) -> Self:
        path = _lock_path(self._home)
        with making(self._home):
            self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while not _is_taken(self._file, fcntl.LOCK_EX):
            if not _is_taken(self._file, fcntl.LOCK_SH):
                os.close(self._file)
                raise LockHolder(_pid_in(path), self._home).refused()
            # Somebody only looked whether it is held, see `holder_of`.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            time.sleep(LOOK_SECONDS)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid()}).encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)


def holder_of(settings: "Settings") -> LockHolder | None:
    """Who holds the home now; None when nobody does."""
    path = _lock_path(settings.home)
    if not path.exists():
        return None
    with path.open("r+") as file:
        if _is_taken(file.fileno(), fcntl.LOCK_SH):
            return None
    return LockHolder(_pid_in(path), settings.home)


def end_holder(holder: LockHolder, settings: "Settings") -> None:
    """Ask it to drain, and wait until it has gone."""
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        patience = settings.stop_grace_seconds + END_MARGIN_SECONDS
        ended, _, _ = select.select([process], [], [], patience)
    finally:
        os.close(process)
    if not ended:
        raise CommandFailed(
            f"Process {holder.pid} has not ended after {patience:.0f} s; its log says what it "
            f"waits for. A second SIGTERM (kill {holder.pid}) ends it at once.",
            ExitCode.failed,
        )


def _is_taken(file: int, how: int) -> bool:
    """Take the lock without waiting for it; whether that was possible."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(home: Path) -> Path:
    return home / "up.lock"


def _pid_in(path: Path) -> int:
    """The holder's id, which it writes a moment after it took the lock."""
    deadline = time.monotonic() + 1.0
    while True:
        try:
            return int(json.loads(path.read_text())["pid"])
        except ValueError:
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"{path} is locked by a process that did not write its id; "
                    f"`fuser {path}` finds it."
                ) from None
        time.sleep(0.02)
