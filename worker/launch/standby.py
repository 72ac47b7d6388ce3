"""Launchers whose trainers have been started ahead: they have imported PyTorch and wait."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from worker.launch.local import LauncherProcess, start_launcher

log = structlog.get_logger("stoker.worker")

# Read only once the device is used, so a trainer that waits is given them with its attempt.
READ_LATE = frozenset({"CUDA_VISIBLE_DEVICES"})
# A launcher kills its trainer at once; a process that hangs in the kernel is left to it.
END_SECONDS = 5.0
# After one that could not be started, or died: whatever ended it may end the next.
RETRY_SECONDS = 60.0


@dataclass(frozen=True)
class _Waiting:
    environment: Mapping[str, str]
    launched: LauncherProcess


class Standby:
    """Keeps `wanted` trainers waiting, with the environment of the last attempt or that given."""

    def __init__(
        self, wanted: int, environment: Mapping[str, str], command: Sequence[str] | None = None
    ) -> None:
        self._wanted = wanted
        self._environment = environment
        self._command = command
        self._waiting: list[_Waiting] = []
        self._let_go: list[LauncherProcess] = []
        self._not_before = 0.0  # monotonic

    def launcher(self, environment: Mapping[str, str]) -> LauncherProcess:
        """A launcher for an attempt, with a waiting trainer if one has the same environment.

        OSError when this host cannot start processes.
        """
        self._environment = environment
        self._forget_dead()
        for waiting in self._waiting:
            if _early(waiting.environment) == _early(environment):
                self._waiting.remove(waiting)
                return waiting.launched
        return start_launcher(environment, self._command)

    def refill(self) -> None:
        """Start what is missing, and let go of what no attempt like the last one could use."""
        self._forget_dead()
        for waiting in list(self._waiting):
            if _early(waiting.environment) != _early(self._environment):
                self._end(waiting)
        if time.monotonic() < self._not_before:
            return
        try:
            while len(self._waiting) < self._wanted:
                launched = start_launcher(self._environment, self._command, standby=True)
                self._waiting.append(_Waiting(self._environment, launched))
        except OSError as error:
            self._give_up(str(error))

    def pids(self) -> set[int]:
        """The living launchers that have no attempt."""
        self._forget_dead()
        return {one.pid for one in (*(w.launched for w in self._waiting), *self._let_go)}

    def close(self) -> None:
        """Let go of all, and see them end."""
        for waiting in list(self._waiting):
            self._end(waiting)
        deadline = time.monotonic() + END_SECONDS
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _end(self, waiting: _Waiting) -> None:
        waiting.launched.close()
        self._waiting.remove(waiting)
        self._let_go.append(waiting.launched)

    def _give_up(self, why: str) -> None:
        self._not_before = time.monotonic() + RETRY_SECONDS
        log.warning("no trainer stands by for a while", seconds=RETRY_SECONDS, why=why)

    def _forget_dead(self) -> None:
        for waiting in list(self._waiting):
            if (code := waiting.launched.returncode()) is not None:
                self._end(waiting)
                self._give_up(f"its launcher ended with exit code {code}")
        self._let_go = [one for one in self._let_go if one.returncode() is None]


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in READ_LATE}
