"""What the shim in a script has counted: steps, and the time that it waited for data."""

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from worker.script.work import SHIM

# Rates are over so long: a script's steps may take a second each.
RATE_SECONDS = 10.0
RATES_UNKNOWN: dict[str, float | None] = {"iterations_per_second": None, "data_wait_ratio": None}


class Steps(NamedTuple):
    """How far a script is."""

    step: int = 0
    """What it has said, or the shim has counted."""
    counted: int = 0
    """By the shim; 0 without it."""
    at_save: int = 0
    """The counted step of the last torch.save; 0 without one."""


class Shim:
    """Reads the file that `path/sitecustomize.py` maps into the script's memory."""

    def __init__(self, path: Path) -> None:
        """OSError."""
        path.write_bytes(bytes(SHIM.size))
        # Read, not mapped: a script that cuts the file short would end this process by SIGBUS.
        # It stays open to the end of this process.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._figures = bytes(SHIM.size)
        self.steps = self._others = 0
        self._marks: deque[tuple[float, int, float]] = deque()
        self._stepped = (0.0, 0, 0.0)
        """Like a mark: the last look that found new steps."""
        self._waited = self._other = self._seconds = 0.0
        self._steps_timed = 0

    def read(self) -> bool:
        """Look at the figures; whether the script has made steps since, also such as are not
        counted.
        """
        before, others = self.steps, self._others
        self.steps, waited, _, self._others, _ = self._read()
        now = time.monotonic()
        # Until the first step it imports and loads; and another process of it counts from zero.
        if not before or self.steps < before:
            self._marks.clear()
        self._marks.append((now, self.steps, waited))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_SECONDS:
            self._marks.popleft()
        if self.steps != before:
            self._add_up((now, self.steps, waited))
        return (self.steps, self._others) != (before, others)

    def now(self) -> tuple[int, int]:
        """Returns the steps by now, and how many there were at the last torch.save."""
        steps, _, _, _, saved_step = self._read()
        return steps, saved_step

    def _read(self) -> tuple[int, float, int, int, int]:
        with suppress(OSError):
            figures = os.pread(self._descriptor, SHIM.size, 0)
            if len(figures) == SHIM.size:
                self._figures = figures
        return SHIM.unpack(self._figures)

    def _add_up(self, now: tuple[float, int, float]) -> None:
        """The time since the look before that found new steps, which these took."""
        (began, before, waited_before), self._stepped = self._stepped, now
        ended, after, waited = now
        if not before or after < before:
            return
        seconds, waiting = ended - began, max(0.0, waited - waited_before)
        self._seconds += seconds
        self._steps_timed += after - before
        self._waited += waiting
        self._other += max(0.0, seconds - waiting)

    def mean_rate(self) -> float | None:
        """Steps a second from the first one to the last; None before that takes any time."""
        return self._steps_timed / self._seconds if self._seconds else None

    def phase_seconds(self) -> dict[str, float] | None:
        """Of that time, how long the steps waited for data, and the rest; None as above."""
        if not self._seconds:
            return None
        return {"data_wait": self._waited, "other": self._other}

    def rates(self) -> dict[str, float | None]:
        """Steps a second, and which part of the time they waited for data, of late; at the
        beginning since the first step.
        """
        if len(self._marks) < 2:
            return RATES_UNKNOWN
        (first, before, waited_before), (last, after, waited) = self._marks[0], self._marks[-1]
        seconds = last - first
        if seconds <= 0:
            return RATES_UNKNOWN
        ratio = min(1.0, max(0.0, (waited - waited_before) / seconds))
        return {"iterations_per_second": (after - before) / seconds, "data_wait_ratio": ratio}
