"""Ends what a killed launcher leaves behind."""

import os
import signal

import structlog

from worker.launcher import children_of

log = structlog.get_logger("stoker.worker")


def end_orphans(known: set[int]) -> None:
    """Kill and reap every child of this process that it did not start itself.

    The agent is a subreaper: the descendants of a launcher that was killed become its children.
    """
    while orphans := set(children_of(os.getpid())) - known:
        for pid in orphans:
            log.warning("a process without a launcher is killed", pid=pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
