"""Locks that launchers hold while processes of their attempt live: one a slot, and one a run."""

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path

LAUNCHER = b"worker.launch.launcher"


def take_lock(path: Path) -> int | None:
    """The descriptor that holds the lock; None while another process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def lock_is_free(path: Path) -> bool:
    """True if no launcher holds the lock. One that holds it and was stopped (SIGSTOP) is continued:
    if its agent is gone, it sees that and ends its attempt.
    """
    fd = take_lock(path)
    if fd is not None:
        os.close(fd)
        return True
    for pid in lock_holders(path):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGCONT)
    return False


def lock_holders(path: Path) -> list[int]:
    """Returns process ids of launchers that hold the lock; none where the kernel hides them."""
    try:
        inode = f":{path.stat().st_ino}"
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    pids = {int(words[4]) for words in lines if len(words) > 5 and words[5].endswith(inode)}
    return sorted(pid for pid in pids if pid > 0 and _is_launcher(pid))


def _is_launcher(pid: int) -> bool:
    try:
        return LAUNCHER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
