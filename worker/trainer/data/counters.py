"""What the data plane counts while it runs."""

from dataclasses import dataclass


@dataclass
class Counters:
    """`bytes_read` from files; `queue_depth`: chunks that were ready when the loop last asked for
    one (None: nothing is queued, the data is resident).
    """

    bytes_read: int = 0
    queue_depth: int | None = None
