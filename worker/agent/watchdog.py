"""The watchdog: a trainer whose pulse stands still for too long is hung."""

from typing import Literal, TypeAlias

from app.spec.script import ScriptSpec
from app.spec.stored import AnySpec

Pulse: TypeAlias = tuple[int, int]  # the phase and its counter

AUTO_HANG_SECONDS = 600.0
# Importing torch, reading data and building may beat rarely, and so may the first batch of a phase,
# which compiles, tunes and waits for the first chunk: less time than this is never enough.
STARTUP_SECONDS = 600.0
STARTUP_PHASES = 4  # the first ones of a pulse: starting, building, restoring, preparing
# What follows them beats once for each shape of a batch, and tuning kernels for one may take long.
COMPILING_PHASE = 4
COMPILING_SECONDS = 3600.0
# Between asking for the stacks and the kill, so that the trainer can write them down.
DUMP_SECONDS = 1.0


def hang_timeout_of(spec: AnySpec) -> float | Literal["auto"]:
    """A script's own watchdog is its runner, whose pulse beats while it lives."""
    return "auto" if isinstance(spec, ScriptSpec) else spec.policy.hang_timeout_seconds


def longest_silence(spec: AnySpec) -> float:
    """Seconds for which a run may stand still in any of its phases, at most."""
    timeout = hang_timeout_of(spec)
    return COMPILING_SECONDS if timeout == "auto" else max(timeout, COMPILING_SECONDS)


class Watchdog:
    """Compares the pulse with what it was; times are monotonic seconds."""

    def __init__(
        self, timeout_seconds: float | Literal["auto"], pulse: Pulse | None, now: float
    ) -> None:
        """`pulse`: as it is now; None: there is none yet."""
        self._timeout = AUTO_HANG_SECONDS if timeout_seconds == "auto" else float(timeout_seconds)
        self._pulse = pulse
        self._moved_at = now
        self._warm: set[int] = set()  # phases in which the counter was seen to move

    @property
    def allowed_seconds(self) -> float:
        """How long the pulse may stand still in the phase it was last seen in."""
        phase = None if self._pulse is None else self._pulse[0]
        if phase == COMPILING_PHASE:
            return max(self._timeout, COMPILING_SECONDS)
        return self._timeout if phase in self._warm else max(self._timeout, STARTUP_SECONDS)

    def hangs(self, pulse: Pulse | None, now: float) -> bool:
        """Whether neither phase nor counter has moved, up to `pulse`, within the time allowed."""
        if pulse != self._pulse:
            self._note(pulse)
            self._moved_at = now
        return now - self._moved_at > self.allowed_seconds

    def excuse(self, now: float) -> None:
        """Begin to count anew: the pulse could not be seen."""
        self._moved_at = now

    def _note(self, pulse: Pulse | None) -> None:
        before, self._pulse = self._pulse, pulse
        if pulse is None or before is None or pulse[0] < STARTUP_PHASES:
            return
        if pulse[0] == before[0]:
            self._warm.add(pulse[0])
