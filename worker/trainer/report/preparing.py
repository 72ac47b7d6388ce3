"""What lasting work before the first step owes the outside: beats, an end when asked, its needs."""

from dataclasses import asdict

from app.planning.ladder import Use
from worker.reporting import EventLog, Pulse
from worker.trainer.stop import StopFlag


class StopRequested(Exception):
    """Ends work that has no step boundary to stop at and nothing to save."""


class Preparing:
    """Loads and passes over the data call it once a piece, which takes a second at the utmost."""

    def __init__(self, pulse: Pulse, stop: StopFlag, events: EventLog | None = None) -> None:
        """Without `events` nobody is told what memory is taken."""
        self._pulse = pulse
        self._stop = stop
        self._events = events

    def enter(self, phase: str) -> None:
        """A new phase, which the watchdog gives its own time."""
        self._pulse.enter(phase)
        if self._events is not None:
            self._events.emit("phase", phase=phase)

    def warn(self, code: str, message: str) -> None:
        """Into the run's history."""
        if self._events is not None:
            self._events.emit("warning", code=code, message=message)

    def will_use(self, use: Use) -> None:
        """Said beforehand: who is killed for want of memory cannot say it any more."""
        if self._events is not None:
            self._events.emit("memory", **asdict(use))

    def piece_done(self) -> None:
        """Raises StopRequested."""
        self._pulse.beat()
        if self._stop.requested:
            raise StopRequested
