"""The processes of a script: its leader, whoever descends from it, and how they are ended."""

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from app.container import held_memory
from app.inherited import Inherited
from worker.kept import Kept

POLL_SECONDS = 0.1
# A process that SIGKILL has not ended by then hangs in a driver or a file system.
KILL_SECONDS = 10.0


class Leader:
    """The process of the user's command, in a group of its own. This process has to be a subreaper,
    so that whatever the leader leaves behind becomes its child.
    """

    def __init__(self, argv: Sequence[str], cwd: Path, kept: Kept) -> None:
        """OSError when it cannot be started."""
        with (kept.stdin or Path(os.devnull)).open("rb") as stdin:
            self._process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=kept.environment,
                stdin=stdin,
                start_new_session=True,
                preexec_fn=partial(_become_usual, kept.inherited),
            )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.codes: dict[int, int] = {}
        """Exit codes of orphans below it, by process id; negative for a signal."""

    def has_ended(self, timeout: float = 0.0) -> bool:
        """Whether it has ended within so many seconds."""
        return bool(select.select([self.pidfd], [], [], timeout)[0])

    def signal(self, number: int) -> None:
        """To the leader alone: helpers of its own that died now would look like a failure."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self, pid: int) -> None:
        """Reaps an orphan that has ended; its parent still has to reap any other process."""
        with suppress(ChildProcessError):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                self.codes[pid] = os.waitstatus_to_exitcode(status)

    def returncode(self) -> int:
        """Its exit code, negative for a signal, once it has ended."""
        return self._process.wait()

    def close(self) -> None:
        os.close(self.pidfd)


def _become_usual(inherited: Inherited) -> None:
    """Runs between fork and exec. Other threads are gone by then, so it imports nothing and takes
    no lock.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    inherited.apply()


class ScriptSignals:
    """SIGTERM asks for a stop; the handler only records. `wait` returns early when it comes."""

    def __init__(self) -> None:
        self.asked = False
        self._wake, theirs = socket.socketpair()
        self._wake.setblocking(False)
        theirs.setblocking(False)
        self._theirs = theirs
        signal.set_wakeup_fd(theirs.fileno())
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a trainer would write its stacks down

    def _note(self, number: int, frame: object) -> None:
        self.asked = True

    def wait(self, leader: Leader, seconds: float) -> None:
        """Until the leader ends, a signal comes, or so many seconds are over."""
        if select.select([self._wake.fileno(), leader.pidfd], [], [], max(0.0, seconds))[0]:
            try:
                self._wake.recv(64)
            except BlockingIOError:
                return


def kill_all(leader: Leader) -> None:
    """Kill all descendants, however fast they fork. Those that hang in the kernel are left to the
    launcher, which waits for them.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while (left := living(leader)) and time.monotonic() < deadline:
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS / 10)


def send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)


def living(leader: Leader) -> list[psutil.Process]:
    """Returns the descendants of this process that live, the leader among them. Reaps orphans that
    have ended and notes their exit codes; the leader's is asked for later.
    """
    alive = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
            elif process.pid != leader.pid:
                leader.reap(process.pid)
    return alive


def memory_of(leader: Leader) -> int:
    """Bytes of memory that the script's processes hold together. Pages that several of them share,
    as loader processes do that were forked, count once; those of files do not count.
    """
    return sum(held_memory(process.pid) for process in living(leader))
