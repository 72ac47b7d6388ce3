"""Which process this is, beyond its pid: so that a dead lease holder is known at once."""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process for all time. `boot_id` also names the pid namespace, since two containers of one
    host share a boot but not their pids; `start_time` is in clock ticks since the boot.
    """

    host: str
    boot_id: str
    pid: int
    start_time: float


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    pid = os.getpid()
    started = _start_time(pid)
    if started is None:
        raise RuntimeError(f"/proc/{pid}/stat cannot be read; Stoker needs Linux with /proc.")
    return ProcessIdentity(socket.gethostname(), _boot_id(), pid, started)


def is_known_dead(identity: ProcessIdentity) -> bool:
    """Whether the process has certainly ended; False also when it is of another host or boot, and
    when /proc cannot be read, as when this process may open no more files.
    """
    if (identity.host, identity.boot_id) != (socket.gethostname(), _boot_id()):
        return False
    try:
        return _start_time(identity.pid) != identity.start_time
    except OSError:
        return False


@cache
def _boot_id() -> str:
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {(PROC / 'self/ns/pid').readlink()}"


def _start_time(pid: int) -> float | None:
    """Clock ticks from the boot to the start of the process; None when there is no such process.

    A zombie counts as ended: it holds nothing any more and never beats again. OSError when /proc
    cannot be read; PermissionError when there is one that may not be seen: where it is mounted with
    `hidepid`, another user's is not there, or cannot be read.
    """
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if _exists(pid):
            raise PermissionError(f"/proc does not show process {pid}") from None
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
    return None if fields[0] in ("Z", "X") else float(fields[19])


def _exists(pid: int) -> bool:
    """Whether there is such a process, also one that /proc hides."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
