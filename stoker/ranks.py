"""What the processes of one script agree on, by a file in the run's folder.

They agree when to stop, and wait for each other at checkpoints. None needs another one's answer to
give its own whether to stop, so that asking never blocks, waits for no GPU, and works before,
without and after torch.distributed. All processes are on one host. Standard library only, and
Python 3.8 or later, as in stoker.script.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

MEET_SECONDS = 1800.0  # a large checkpoint is hashed meanwhile
TELL_SECONDS = 10.0
POLL_SECONDS = 0.01
COUNT = struct.Struct("<q")


def rank_and_size() -> tuple[int, int]:
    """Which process this is, and of how many: by its launcher, or by torch.distributed."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


@lru_cache(maxsize=None)  # noqa: UP033 - Python 3.8; one for the process, which counts
def ranks_in(folder: Path) -> Ranks:
    """Those of the run whose folder this is. OSError."""
    return Ranks(folder)


class Ranks:
    """Counts of each process, of 8 bytes each: its calls that were answered by no, the meetings
    that it came to, and the last that it came to with a failure. In front of them stands the call
    at which all stop, or 0.
    """

    def __init__(self, folder: Path) -> None:
        """OSError."""
        self._rank, self._size = rank_and_size()
        # Processes that a launcher starts anew begin to count anew.
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        path = folder / f"ranks-{restarts}-{self._size}"
        self._file = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o600)
        self._calls = self._meetings = 0

    def all_stop(self, wanted: bool) -> bool:
        """Whether to stop at this call, the same for each process at its call of this number.

        `wanted`: whether this process has seen that it should. The first one that has decides: at
        the first call that none has answered yet.
        """
        self._calls += 1
        os.lockf(self._file, os.F_LOCK, 0)
        try:
            stop_at, *answered = self._counts(0, 1 + self._size)
            if wanted and not stop_at:
                stop_at = max(*answered, self._calls - 1) + 1
                self._put(0, stop_at)
            if stop_at and self._calls >= stop_at:
                return True
            self._put(1 + self._rank, self._calls)
            return False
        finally:
            os.lockf(self._file, os.F_ULOCK, 0)

    def meet(self, what: str) -> None:
        """Wait until all processes have come here as often as this one.

        Raises RuntimeError where one has failed at what came before, or does not come.
        """
        self._arrive()
        began, is_told = time.monotonic(), False
        while missing := self._missing():
            waited = time.monotonic() - began
            those = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {missing} have"
            told = (
                f"stoker: rank {self._rank} is at {what} and waits: {those} not come there. Every "
                "process has to enter the block; what only one should save, it saves inside."
            )
            if waited > MEET_SECONDS:
                raise RuntimeError(told)
            if waited > TELL_SECONDS and not is_told:
                is_told = True
                sys.stderr.write(told + "\n")
            time.sleep(POLL_SECONDS)
        failed = self._counts(1 + 2 * self._size, self._size)
        if self._meetings in failed:
            rank = failed.index(self._meetings)
            raise RuntimeError(f"{what} failed in rank {rank}, whose own error says why")

    def fail(self) -> None:
        """Come to the next meeting without waiting, and have it fail for the others."""
        self._put(1 + 2 * self._size + self._rank, self._meetings + 1)
        self._arrive()

    def _arrive(self) -> None:
        self._meetings += 1
        self._put(1 + self._size + self._rank, self._meetings)

    def _missing(self) -> list[int]:
        arrived = self._counts(1 + self._size, self._size)
        return [rank for rank, count in enumerate(arrived) if count < self._meetings]

    def _counts(self, first: int, number: int) -> list[int]:
        found = os.pread(self._file, number * COUNT.size, first * COUNT.size)
        whole = found.ljust(number * COUNT.size, b"\0")
        return [count for (count,) in COUNT.iter_unpack(whole)]

    def _put(self, place: int, count: int) -> None:
        os.pwrite(self._file, COUNT.pack(count), place * COUNT.size)
