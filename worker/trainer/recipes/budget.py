"""The time that simple baselines may take, and which of them are left out."""

import math
import time
from collections.abc import Callable


class Budget:
    """Seconds by the clock, since waiting for a disk or a GPU holds up the run's end too.

    A stop ends them. `too_late` and `too_large` name the baselines that are left out.
    """

    def __init__(
        self, seconds: float = math.inf, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.seconds = seconds
        self.too_late: list[str] = []
        self.too_large: list[str] = []
        self._end = time.monotonic() + seconds
        self._is_stopped = is_stopped

    def seconds_left(self) -> float:
        return 0.0 if self._is_stopped() else max(0.0, self._end - time.monotonic())

    def has_time_for(self, name: str) -> bool:
        """Returns False, and notes the baseline, if the time is over."""
        is_over = self.seconds_left() <= 0
        if is_over:
            self.too_late.append(name)
        return not is_over
