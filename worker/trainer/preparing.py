"""What lasting work before the first step owes the outside: a beat a piece, an end when asked."""

from worker.trainer.pulse import Pulse
from worker.trainer.stop import StopFlag


class StopRequested(Exception):
    """Ends work that has no step boundary to stop at and nothing to save."""


class Preparing:
    """Loads and passes over the data call it once a piece, which takes a second at the utmost."""

    def __init__(self, pulse: Pulse, stop: StopFlag) -> None:
        self._pulse = pulse
        self._stop = stop

    def piece_done(self) -> None:
        """Raises StopRequested."""
        self._pulse.beat()
        if self._stop.requested:
            raise StopRequested
