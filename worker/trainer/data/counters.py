"""What the data plane counts while it runs."""

from dataclasses import dataclass, field
from typing import Literal

Cause = Literal["sync", "h2d"]


@dataclass
class Counters:
    """`bytes_read` from files; `queue_depth`: chunks, or batches of the PyTorch loader, that were
    ready when the loop last asked for one (None: nothing is queued). `copy_seconds`: what copies to
    the device took, those that have been waited for (None: the device is the host).
    """

    bytes_read: int = 0
    queue_depth: int | None = None
    copy_seconds: float | None = None
    held_up: dict[Cause, float] = field(default_factory=dict)
    """Seconds of the loop's waits for a batch in which the device still had work that was given to
    it before (`sync`), or only a copy to it was missing (`h2d`); whoever counts them takes them.
    """

    def hold_up(self, cause: Cause, seconds: float) -> None:
        self.held_up[cause] = self.held_up.get(cause, 0.0) + seconds
