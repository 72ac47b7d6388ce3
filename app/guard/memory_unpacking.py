"""What readers of packed Arrow files hold: whole record batches, unpacked."""

from collections.abc import Sequence

from app.guard.crews import Crews
from app.guard.facts import FieldFacts
from app.spec.residency import MOST_READ_THREADS


def unpacking_bytes(
    arrays: Sequence[FieldFacts], samples: int, cores: int | None, crews: Crews | None
) -> int:
    """Of the host, for the arrays of a run.

    Each thread has the column of a record batch packed and unpacked; of the batch that was read
    last, and of the one that follows it, all columns stay. A process of the PyTorch loader has one
    thread.
    """
    packed = [array for array in arrays if array.is_unpacked_in_batches]
    columns = [array.sample_bytes * (array.chunk_rows or 0) for array in packed]
    if not columns:
        return 0
    batches = -(-samples // max(1, packed[0].chunk_rows or 1))
    threads = min(MOST_READ_THREADS, cores or MOST_READ_THREADS, len(columns) * batches)
    readers = crews.processes if crews is not None else 0
    if readers:
        return readers * 2 * (max(columns) + sum(columns))
    return 2 * (threads * max(columns) + min(2, batches) * sum(columns) // 2)
