"""The watchdog: a trainer whose pulse stands still for too long is hung."""

from typing import Literal

from worker.attempt import AttemptDir

AUTO_HANG_SECONDS = 600.0
# Importing torch, reading data and building may beat rarely: less time than this is never enough.
STARTUP_SECONDS = 600.0
STARTUP_PHASES = 3  # the first ones of a pulse: starting, building, restoring
# Between asking for the stacks and the kill, so that the trainer can write them down.
DUMP_SECONDS = 1.0


class Watchdog:
    """Compares the pulse with what it was; times are monotonic seconds."""

    def __init__(
        self, attempt: AttemptDir, timeout_seconds: float | Literal["auto"], now: float
    ) -> None:
        self._attempt = attempt
        self._timeout = AUTO_HANG_SECONDS if timeout_seconds == "auto" else float(timeout_seconds)
        self._pulse = attempt.pulse()
        self._moved_at = now

    @property
    def allowed_seconds(self) -> float:
        """How long the pulse may stand still in the phase it was last seen in."""
        is_starting = self._pulse is None or self._pulse[0] < STARTUP_PHASES
        return max(self._timeout, STARTUP_SECONDS) if is_starting else self._timeout

    def hangs(self, now: float) -> bool:
        """Whether neither phase nor counter has moved within the time allowed."""
        pulse = self._attempt.pulse()
        if pulse != self._pulse:
            self._pulse, self._moved_at = pulse, now
        return now - self._moved_at > self.allowed_seconds
