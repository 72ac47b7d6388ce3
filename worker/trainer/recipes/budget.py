"""The time that simple baselines may take, and which of them are left out."""

import math
import time
from collections.abc import Callable


class Budget:
    """Seconds of the processor, so that other programs do not decide what is left out; and at most
    so many by the clock, since waiting for a disk holds up the run's end too.

    A stop ends them. `too_late` and `too_large` name the baselines that are left out.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        most_by_the_clock: float = math.inf,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.seconds = seconds
        self.too_late: list[str] = []
        self.too_large: list[str] = []
        self._end = time.process_time() + seconds
        self._end_by_the_clock = time.monotonic() + most_by_the_clock
        self._is_stopped = is_stopped

    def seconds_left(self) -> float:
        if self._is_stopped() or time.monotonic() >= self._end_by_the_clock:
            return 0.0
        return max(0.0, self._end - time.process_time())

    def has_time_for(self, name: str) -> bool:
        """Returns False, and notes the baseline, if the time is over."""
        is_over = self.seconds_left() <= 0
        if is_over:
            self.too_late.append(name)
        return not is_over
