"""What the data plane counts while it runs."""

from dataclasses import dataclass


@dataclass
class Counters:
    """`bytes_read` from files; `queue_depth`: chunks, or batches of the PyTorch loader, that were
    ready when the loop last asked for one (None: nothing is queued). `copy_seconds`: what copies to
    the device took, those that have been waited for (None: the device is the host).
    """

    bytes_read: int = 0
    queue_depth: int | None = None
    copy_seconds: float | None = None
