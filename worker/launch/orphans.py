"""Ends what killed launchers and agents leave behind."""

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import structlog

from worker.launch.launcher import children_of
from worker.launch.locks import lock_is_free

log = structlog.get_logger("stoker.worker")

# How long one call waits for the killed to die; one that hangs in the kernel is asked for later.
DEATH_SECONDS = 0.2


class Orphans:
    """Killed processes that are not gone yet.

    The agent is a subreaper: the descendants of a launcher that was killed become its children.
    """

    def __init__(self) -> None:
        self._dying: set[int] = set()

    def end(self, known: set[int]) -> set[int]:
        """Kill and reap every child that this process did not start itself; those still there."""
        deadline = time.monotonic() + DEATH_SECONDS
        while orphans := set(children_of(os.getpid())) - known:
            for pid in orphans - self._dying:
                log.warning("a process without a launcher is killed", pid=pid)
                os.kill(pid, signal.SIGKILL)
            self._dying = {pid for pid in orphans if not _is_gone(pid, deadline)}
            if time.monotonic() >= deadline:
                return self._dying
        self._dying = set()
        return self._dying


def end_abandoned(artifact_root: Path) -> None:
    """Kill processes of scripts whose runner, launcher and agent were all killed. No launcher holds
    the lock of their run, whose folder is in their environment.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            folder = Path(environment.get("STOKER_RUN_DIR", "/")).parent
            is_ours = folder.parent == artifact_root / "runs" and process.pid not in spared
            is_ours = is_ours and "STOKER_ATTEMPT" in environment  # no shell that looks at a run
            if is_ours and lock_is_free(folder / "lock"):
                log.warning("a process of an earlier agent is killed", pid=process.pid)
                process.kill()


def _is_gone(pid: int, deadline: float) -> bool:
    """Reap the process if it dies before the deadline; never blocks beyond it."""
    with suppress(OSError):
        pidfd = os.pidfd_open(pid)
        select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        os.close(pidfd)
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
