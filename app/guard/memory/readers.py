"""What reading the files takes on the host, whatever the device."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.guard.facts import FieldFacts
from app.guard.memory.budget import PHASES, Item
from app.guard.memory.worker_pools import WorkerPools
from app.guard.memory.workload import Workload
from app.planning.residency import (
    CHUNK_CACHE_BYTES,
    MIB,
    MOST_READ_THREADS,
    PIECE_BYTES,
    PLACE_BYTES,
    Residency,
)

# Blocks of 2 MiB of float64 of the statistics, of which each of two threads has two or three.
STATISTICS_BYTES = 12 * MIB
# The epoch's permutation, and the raw numbers and the sorted rows while it is made.
ORDER_COPIES = 4
# Chunks that the trainer unpacks past HDF5, whose cache stays empty then. Most take the extra
# `filters`, without which HDF5 could not unpack them either; but it could lzf.
PAST_HDF5 = (None, "gzip", "blosc", "lz4", "zstd")
# Of those, rows that are compared with what HDF5 reads when the file is opened, each in a chunk.
COMPARED_ROWS = 7


@dataclass(frozen=True)
class Readers:
    """Who reads the arrays of a run."""

    work: Workload
    cores: int | None
    pools: WorkerPools | None
    """Of the PyTorch loader."""

    def items(self, data: Residency) -> Iterator[Item]:
        """Of the host. Data that is resident is read once, before the training."""
        need, wanted = self.work.need, self.work.spec.data.standardize
        if wanted.inputs or wanted.targets:  # means and deviations are taken of the data first
            piece = min(PIECE_BYTES, need.data_bytes)
            yield Item("statistics", piece + STATISTICS_BYTES, ("building",))
            # The heap keeps what this thread has had there: what reads later are other threads.
            yield Item("statistics_chunk_cache", self.cache_bytes(need.train_samples))
        yield Item("opening_chunk_cache", self.compared_bytes)
        phases = ("building",) if data.kind == "resident" else PHASES
        yield Item("unpacking", self.unpacking_bytes, phases)
        training, beside = self._counts()
        yield Item("chunk_cache", training * self.cache_bytes(need.train_samples), phases)
        if need.held_out and data.kind != "resident":
            kept = beside * self.cache_bytes(max(need.held_out))
            yield Item("evaluation_chunk_cache", kept, ("evaluating",))
        yield Item("order", ORDER_COPIES * PLACE_BYTES * need.train_samples, ("training",))

    def cache_bytes(self, samples: int) -> int:
        """The most that HDF5 keeps unpacked for one reader of so many samples, of arrays that it
        reads itself.
        """
        by_hdf5 = [a for a in self._in_chunks if a.compression not in PAST_HDF5]
        return sum(_in_cache(array, samples) for array in by_hdf5)

    @property
    def compared_bytes(self) -> int:
        """The same of the arrays that are read past HDF5: of the rows that are compared."""
        past = [array for array in self._in_chunks if array.compression in PAST_HDF5]
        return sum(
            _in_cache(a, min(COMPARED_ROWS * (a.chunk_rows or 1), self._samples)) for a in past
        )

    @property
    def _samples(self) -> int:
        """Of all parts."""
        return self.work.need.train_samples + sum(self.work.need.held_out)

    @property
    def _in_chunks(self) -> list[FieldFacts]:
        return [array for array in self.work.arrays.values() if array.storage == "chunked"]

    def _counts(self) -> tuple[int, int]:
        """Of the training, and beside them while a part is evaluated."""
        if self.pools is None or not self.pools.processes:
            return 1, int(bool(self.work.need.held_out))
        training = self.pools.training.workers
        return training, self.pools.processes - training

    @property
    def unpacking_bytes(self) -> int:
        """Of Arrow files: each thread has the columns of a record batch as stored and unpacked, and
        those that were read last stay. A process of the PyTorch loader has one thread.
        """
        arrays = [array for array in self.work.arrays.values() if array.is_read_in_batches]
        batch_rows = max((array.chunk_rows or 0 for array in arrays), default=0)
        if not batch_rows:
            return 0
        batch_bytes = batch_rows * sum(array.sample_bytes for array in arrays)
        batches = -(-self._samples // batch_rows)
        threads = min(MOST_READ_THREADS, self.cores or MOST_READ_THREADS, batches)
        if self.pools is not None and self.pools.processes:
            return self.pools.processes * 3 * batch_bytes
        return (2 * threads + 1) * batch_bytes


def _in_cache(array: FieldFacts, samples: int) -> int:
    """HDF5 keeps whole chunks, also of few samples."""
    chunk_rows = array.chunk_rows or 1
    whole_chunks = -(-samples // chunk_rows) * chunk_rows
    return min(CHUNK_CACHE_BYTES, whole_chunks * array.kept_bytes)
