"""Where each second of the host went; the parts always add up to the wall time.

On CUDA `compute` is the time to launch the work: the device does it meanwhile, and what it takes
longer shows as `sync`, where the host waits for it: at a log point, or for a place for the next
batches that it has not yet done with; or in `checkpoint` and `eval`. Copies to the device go on
beside all this, on a stream and a thread of their own: `h2d` is only what the host waited for them
(all that they took is `h2d_seconds` of the totals), `data_wait` what it waited for reading.
`graph_build` is what is compiled before the first step.
"""

import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final, Literal, TypeVar, get_args

from worker.trainer.data.counters import Cause

Item = TypeVar("Item")

Part = Literal["data_wait", "h2d", "compute", "sync", "graph_build", "checkpoint", "eval", "other"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
TRAINING_PARTS: Final[tuple[Part, ...]] = ("data_wait", "h2d", "compute", "sync")


class PhaseClock:
    """Exactly one part runs at any moment, so nothing is counted twice and nothing is missed."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._part: Part = "other"
        self._since = time.perf_counter()

    def switch(self, part: Part) -> Part:
        """Count from now on for `part`; returns the part that ran until now."""
        now = time.perf_counter()
        self._seconds[self._part] += now - self._since
        previous, self._part, self._since = self._part, part, now
        return previous

    @contextmanager
    def part(self, part: Part) -> Iterator[None]:
        previous = self.switch(part)
        try:
            yield
        finally:
            self.switch(previous)

    def waiting(
        self, items: Iterator[Item], held_up: MutableMapping[Cause, float] | None = None
    ) -> Iterator[Item]:
        """The same items; the time to get one is data_wait, but for what is found in `held_up` and
        taken from there; what its user does is compute.
        """
        try:
            while True:
                self.switch("data_wait")
                try:
                    item = next(items)
                except StopIteration:
                    return
                self.switch("compute")
                while held_up:
                    cause, seconds = held_up.popitem()
                    self._seconds["data_wait"] -= seconds
                    self._seconds[cause] += seconds
                yield item
        finally:
            self.switch("other")

    def training(self) -> tuple[float, float]:
        """Seconds of TRAINING_PARTS up to now, and those of them that were data_wait."""
        seconds, part = self._seconds, self._part
        running = time.perf_counter() - self._since if part in TRAINING_PARTS else 0.0
        waited = seconds["data_wait"] + (running if part == "data_wait" else 0.0)
        return sum(map(seconds.__getitem__, TRAINING_PARTS), running), waited

    def read(self) -> dict[Part, float]:
        """Seconds of each part up to now."""
        self.switch(self._part)
        return dict(self._seconds)
