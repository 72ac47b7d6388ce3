"""Stops a script: which of its processes get the stop signal, and what becomes of the others.

The leader gets it, and passes it on if it is a launcher. A shell does not pass it on: it dies, or
waits. So its children get it instead, except those that only read a pipe, as `tee` does: they end
when the pipe does.
"""

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from worker.script.processes import POLL_SECONDS, Leader, kill_all, living, send

SHELL = re.compile(r"(ba|da|z|k|mk|a|tc|c|fi)?sh[0-9.]*")
PYTHON = re.compile(r"(python|pypy)[0-9.]*")
# Helpers of a script that ended by itself have so long to notice that, without a warning.
NOTICE_SECONDS = 1.0


@dataclass(frozen=True)
class Rest:
    """Processes that outlived their leader. `ended_well`: there were some, and none failed."""

    commands: tuple[str, ...] = ()
    ended_well: bool = False


class Stopping:
    """The stop signal of one script on its way. No process gets it twice."""

    def __init__(self, leader: Leader, number: int) -> None:
        self._leader, self._number = leader, number
        self._sent: set[psutil.Process] = set()
        self._first: set[psutil.Process] = set()  # those that lived when it began
        self._writers: list[psutil.Process] = []
        self._has_saved = False  # they had ended by themselves when the rest was killed
        self._has_cut = False  # the signal went to one below a shell that does not handle it
        self.by_shell = _is_shell(psutil.Process(leader.pid))
        """True if the leader is a shell."""
        self._command = _command_of(psutil.Process(leader.pid))

    def begin(self) -> None:
        """Sends the signal to the leader, or past a shell to its children."""
        leader = psutil.Process(self._leader.pid)
        self.by_shell |= _is_shell(leader)  # `env bash` was env when it began
        self._command = _command_of(leader)
        self._first = {leader, *_below(leader)}
        self._send_all(_targets(leader, self._number) or [leader])

    def go_on(self) -> None:
        """Ends a shell that starts something new after the stop, as a loop does."""
        leader = psutil.Process(self._leader.pid)
        new = [one for one in _targets(leader, self._number) if one not in self._first]
        if new:
            self._send_all([leader, *new])

    def kill(self) -> None:
        """Kills all that is left when the grace time is over."""
        alive = any(_status(one) != psutil.STATUS_ZOMBIE for one in self._writers)
        self._has_saved |= bool(self._writers) and not alive and not self._has_cut
        kill_all(self._leader)

    def end_rest(self, deadline: float, *, at_once: bool) -> Rest:
        """Ends what the leader left behind: the signal now, or after a moment if not `at_once`, and
        SIGKILL at `deadline` (monotonic seconds).
        """
        notice_until = time.monotonic() + (0.0 if at_once else NOTICE_SECONDS)
        while (left := living(self._leader)) and time.monotonic() < notice_until:
            time.sleep(POLL_SECONDS)
        commands = tuple(map(_command_of, left))
        while living(self._leader) and time.monotonic() < deadline:
            orphans = [one for one in _children(psutil.Process()) if one.pid != self._leader.pid]
            for orphan in _heads(orphans) or orphans:
                for process in _targets(orphan, self._number) or [orphan]:
                    self._send(process)  # its exit code says whether it was cut
            time.sleep(POLL_SECONDS)
        kill_all(self._leader)
        codes = [
            code
            for one, command in zip(left, commands, strict=True)
            if (code := self._leader.codes.get(one.pid)) is not None and not self._helps(command)
        ]
        return Rest(commands, bool(codes) and not any(codes))

    def _helps(self, command: str) -> bool:
        """True of a forked copy of the leader, or a process of multiprocessing: a worker of a
        DataLoader saves nothing, and ends with 0 whatever becomes of its leader.
        """
        return command == self._command or "multiprocessing" in command

    def was_cut(self, code: int, rest: Rest) -> bool:
        """True if one that may have been writing a save did not end by itself. `code`: the
        leader's, which says nothing of what a shell has left behind.
        """
        if self._has_saved:
            return False
        if rest.commands and (code != 0 or self.by_shell):
            return self._has_cut or not rest.ended_well
        return self._has_cut or code != 0

    def _send_all(self, targets: list[psutil.Process]) -> None:
        below = [one for one in targets if one.pid != self._leader.pid]
        pythons = [one for one in below if _is_python(one)]
        # A wrapper of a Python saves nothing, nor does one that feeds it by a pipe.
        writers = pythons or [one for one in below if not _runs_python(one)]
        self._writers += writers
        masks = "SigCgt", "SigIgn"
        self._has_cut |= not all(_has_in(one, self._number, *masks) for one in writers)
        for process in targets:
            self._send(process)

    def _send(self, process: psutil.Process) -> None:
        if process in self._sent:
            return
        self._sent.add(process)
        for number in (self._number, signal.SIGCONT):  # it may be stopped, as by Ctrl-Z
            if process.pid == self._leader.pid:
                self._leader.signal(number)
            else:
                send(process, number)


def _targets(process: psutil.Process, number: int) -> list[psutil.Process]:
    """Returns the process, or of a shell that does not handle the signal those below it, if any. A
    shell that waits for a child handles SIGINT, but leaves it to the child, as at a terminal.
    """
    if not _is_shell(process):
        return [process]
    is_handled = _has_in(process, number, "SigCgt")
    if is_handled and number != signal.SIGINT:
        return [process]
    below = [one for head in _heads(_children(process)) for one in _targets(head, number)]
    return [process, *below] if is_handled else below


def _heads(children: list[psutil.Process]) -> list[psutil.Process]:
    """Returns those that do more than to read what another one writes. A Python that reads a pipe
    counts if no Python writes: `zcat data | python train.py`.
    """
    readers = [one for one in children if _link(one, "fd/0").startswith("pipe:")]
    heads = [one for one in children if one not in readers]
    if not any(map(_runs_python, heads)):
        heads += filter(_runs_python, readers)
    return heads


def _is_shell(process: psutil.Process) -> bool:
    return SHELL.fullmatch(_executable(process)) is not None


def _is_python(process: psutil.Process) -> bool:
    return PYTHON.fullmatch(_executable(process)) is not None


def _runs_python(process: psutil.Process) -> bool:
    return any(map(_is_python, (process, *_below(process))))


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    """Returns those that live."""
    try:
        return [one for one in process.children() if _status(one) != psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return []


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.Error:
        return psutil.STATUS_ZOMBIE


def _has_in(process: psutil.Process, number: int, *masks: str) -> bool:
    """True if one of these masks of /proc/PID/status has the signal."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:  # it has just ended
        return False
    lines = (line.partition(":") for line in text.splitlines())
    return any(name in masks and int(mask, 16) >> (number - 1) & 1 for name, _, mask in lines)


def _executable(process: psutil.Process) -> str:
    return Path(_link(process, "exe").removesuffix(" (deleted)")).name


def _link(process: psutil.Process, name: str) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/{name}")  # noqa: PTH115 - it may be no path
    except OSError:
        return ""


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
