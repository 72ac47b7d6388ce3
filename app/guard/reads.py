"""How rows come from the file: what is read at once, and how often each stored chunk is."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from app.guard.facts import DatasetFacts, FieldFacts, known
from app.guard.memory.memory_plan import MemoryPlan
from app.planning.residency import CHUNK_CACHE_BYTES, PIECE_BYTES
from app.planning.shuffle import Shuffle
from app.spec.data import ChunkedLoader, Loader


@dataclass(frozen=True)
class Reading:
    """How the chunks of a streamed run take their rows from the file."""

    within: float
    """Of the samples that are shuffled together, those that one chunk takes."""
    around: float
    """Of all samples, those of one chunk, or of the group that it is a part of."""
    block: int
    """Neighbours that the order keeps together."""
    piece: int
    """Rows that are asked for at once at most."""
    remembers: bool = True
    """Whether a storage chunk that one read leaves in the cache is there for the next."""
    readers: int = 1
    """Processes that take turns with the batches, each of which unpacks for itself."""


def reading_by_chunks(plan: MemoryPlan, shuffle: Shuffle) -> Reading:
    """Of the chunked loader, which shuffles in this way."""
    need = plan.need
    chunk = min(plan.data.chunk_samples, need.train_samples)
    piece = max(1, PIECE_BYTES // need.sample_bytes)
    if shuffle.kind == "block":
        group = min(shuffle.group, need.train_samples)
        around = max(chunk, group) / need.train_samples
        return Reading(min(1.0, chunk / group), around, shuffle.block, piece)
    within = chunk / need.train_samples if shuffle.kind == "full" else 1.0
    return Reading(within, 1.0, 1, piece)


def reading_by_batches(loader: Loader, batch: int, samples: int) -> Reading:
    """Of the PyTorch loader."""
    if isinstance(loader, ChunkedLoader) or loader.shuffle != "none":
        return Reading(batch / samples, 1.0, 1, batch)
    readers = max(1, loader.num_workers)  # each process reads every so many batches
    return Reading(1.0, 1.0, 1, batch, remembers=False, readers=readers)


def amplification(
    reading: Reading | None, dataset: DatasetFacts, arrays: Mapping[str, FieldFacts]
) -> float:
    """How often an epoch reads the file, by the bytes of the arrays; 1 where they stay on the
    device. UnknownFact.
    """
    if reading is None:
        return 1.0
    read = useful = 0.0
    for array in arrays.values():
        known(array.storage, f"how the arrays of {dataset.name} are stored")
        factor = 1.0
        if array.is_read_whole:
            rows = known(array.chunk_rows, f"the chunks of {dataset.name}")
            factor = read_amplification(array, rows, reading)
        useful += array.kept_bytes
        read += factor * array.kept_bytes
    return read / useful


def read_amplification(array: FieldFacts, chunk_rows: int, reading: Reading) -> float:
    """How often an array is read in an epoch.

    The reader sorts a chunk's rows and reads each run of neighbours at once. A storage chunk that
    the cache holds is read once for each of the run's chunks that has a row of it, one that is
    larger for every run of neighbours. A record batch is not read twice before the reader has gone
    on to the next.
    """
    within, around, block = reading.within, reading.around, reading.block
    aligned = gcd(chunk_rows, block)
    stays = chunk_rows * array.kept_bytes <= CHUNK_CACHE_BYTES or array.is_read_in_batches
    if array.is_read_in_batches and not reading.remembers:
        return float(min(reading.readers, max(1, -(-chunk_rows // reading.piece))))
    if reading.remembers and stays:
        blocks = 1 + (chunk_rows - aligned) / block  # that a storage chunk has a part of
        groups = (1 - (1 - around) ** blocks) / around
        return float(groups * (1 - (1 - within) ** (chunk_rows / groups)) / within)
    ends = 1 - within * (1 - (1 - around) / block)  # of runs of neighbours, for each row
    ends += (1 - ends) / reading.piece
    unbroken = within * (1 - (1 - around) * aligned / block)  # of the borders of storage chunks
    return max(1.0, float(chunk_rows * ends + unbroken * (1 - 1 / reading.piece)))
