"""How far a script is, as its curves, its status and the shim tell it."""

import time
from pathlib import Path
from typing import Any

from worker.reporting import EventLog
from worker.script.curves import Curves, Numbers
from worker.script.shim import RATES_UNKNOWN, Shim, Steps
from worker.script.status import StatusServer

POSTED = Path("status")
# Also when nothing has changed: that the script is watched is news for who waits for some.
TOLD_SECONDS = 60.0


class ScriptProgress:
    """Of one attempt: read, kept, and told by `events`."""

    def __init__(
        self,
        curves: Curves,
        status: StatusServer,
        shim: Shim | None,
        events: EventLog,
        restored: int,
    ) -> None:
        """`restored`: the step that the script goes on from, 0 for none."""
        self._curves, self._status, self._shim = curves, status, shim
        self._events, self._restored = events, restored
        self._said = restored
        """The largest step that the script has said."""
        self._printed = 0
        """The largest step that was read from prints."""
        self.last: dict[str, float] = {}
        """The newest number of each name."""
        self.last_step: int | None = None
        """The step of the newest loss."""
        self._stepped_at: float | None = None
        self._reported_at: float | None = None
        self._told: dict[str, Any] = {}
        self._told_at = 0.0
        self._rated_at = 0

    @property
    def step(self) -> int:
        """The one that the script has said, or that the shim has counted; without both the one that
        it has printed, or 0.
        """
        step = max(self._said, self._counted)
        return step if step > self._restored else max(step, self._printed)

    @property
    def _counted(self) -> int:
        """By the shim, on top of the steps that the script went on from; 0 without it."""
        counted = 0 if self._shim is None else self._shim.steps
        return self._restored + counted if counted else 0

    def now(self) -> Steps:
        """Returns how far the script is by now. Any thread may ask."""
        steps, saved = (0, 0) if self._shim is None else self._shim.now()
        counted = self._restored + steps if steps else 0
        at_save = self._restored + saved if saved else 0
        return Steps(max(self._said, counted), counted, at_save)

    @property
    def has_begun(self) -> bool:
        """Whether the script has made a step, or told a number."""
        return bool(self._counted or self.last)

    @property
    def is_through(self) -> bool:
        """Whether the script has said that it is at its last step."""
        return self._status.steps is not None and self._said >= self._status.steps

    def silence(self, printed_at: float) -> tuple[float, str]:
        """Since when the script stands still (monotonic seconds), and in words what it does not
        do: make steps and report numbers, whichever of both it has done; else print, which it did
        last at `printed_at`.
        """
        signs = {"made no step": self._stepped_at, "reported no number": self._reported_at}
        seen = {words: at for words, at in signs.items() if at is not None}
        if not seen:
            return printed_at, "printed nothing"
        return max(seen.values()), " and ".join(seen)

    def read(self, *, all_of_it: bool = False) -> None:
        """Look at what is new; `all_of_it`: to the end, since nobody writes any more."""
        if self._shim is not None and self._shim.read():
            self._stepped_at = time.monotonic()
        for posted in self._curves.named(POSTED, self._status.take()):
            self._take(posted)
        for point in self._curves.read(all_of_it=all_of_it):
            self._take(point)

    def _take(self, point: Numbers) -> None:
        if not point.is_printed:  # a script that prints other lines meanwhile does not stand still
            self._reported_at = time.monotonic()
        if point.says_step and point.is_printed:
            self._printed = max(self._printed, point.step)
        elif point.says_step:
            self._said = max(self._said, point.step)
        self.last |= point.values
        for name in point.not_finite:  # the value before it is not the newest any more
            self.last.pop(name, None)
        if not point.values:
            return
        if "train_loss" in point.values:
            self.last_step = point.step
        self._events.emit("metrics", step=point.step, values=point.values, **point.origin)

    def _seconds_left(self) -> float | None:
        """As the script says; else by its steps, where it has said how many these are."""
        said, steps = self._status.eta_seconds, self._status.steps
        pace = None if self._shim is None else self._shim.mean_rate()
        if said is not None or steps is None or not pace:
            return said
        return max(0, steps - self.step) / pace

    def tell(self, memory: int, peak: int | None) -> None:
        """What is new since it was told last, or after a while that nothing is. `memory` and
        `peak`: the host's, in bytes.
        """
        shim, status = self._shim, self._status
        rates = RATES_UNKNOWN if shim is None else shim.rates()
        epoch = self.last.get("epoch") if status.epoch is None else status.epoch
        told = {
            "phase": "running",
            "step": self.step,
            "steps": status.steps,
            "epoch": None if epoch is None else int(epoch),
            "ratio": status.ratio,
            "mean_iterations_per_second": None if shim is None else shim.mean_rate(),
            "eta_seconds": self._seconds_left(),
            "loss": self.last.get("train_loss"),
            "lr": self.last.get("lr"),
            "grad_norm": self.last.get("grad_norm"),
            "phase_seconds": None if shim is None else shim.phase_seconds(),
            "host_memory_bytes": memory or None,
            "peak_memory": {"host_bytes": peak, "device_bytes": None},
            "totals": {"train_iterations": 0 if shim is None else shim.steps},
            **rates,
        }
        now = time.monotonic()
        if told != self._told or now - self._told_at >= TOLD_SECONDS:
            self._told, self._told_at = told, now
            self._events.emit("progress", **told)
        values = {name: value for name, value in rates.items() if value is not None}
        if values and self._counted != self._rated_at:
            self._rated_at = self._counted
            self._events.emit("metrics", step=self.step, values=values)
