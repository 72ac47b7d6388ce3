"""What the training loop and its recipe get: batches on the device, in the order of an epoch."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from worker.trainer.data.counters import Counters


@dataclass(frozen=True)
class Batch:
    """Samples on the device: `arrays[name]` is (size, *field.shape), in the dtype of the file; of
    packed arrays it has the rows of all samples, one sample behind another, and zeros behind them.

    The arrays may be views of the data, or of memory that the next batch comes into: read them,
    never write to them, and keep none of them until the next batch is asked for.
    """

    arrays: Mapping[str, Tensor]
    size: int
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    """What the recipe's `prepare` gave, on the device, the same for every batch."""


@dataclass(frozen=True)
class BatchPlan:
    """How `num_samples` positions of an epoch are cut into batches, and these into micro-batches,
    where less than a batch can be computed at once.
    """

    num_samples: int
    batch_size: int
    drop_last: bool
    most_at_once: int | None = None

    @property
    def micro_batch_size(self) -> int:
        return min(self.batch_size, self.most_at_once or self.batch_size)

    @property
    def largest_micro_batch(self) -> int:
        """Samples of the largest that there is."""
        return min(self.micro_batch_size, self.num_samples)

    @property
    def usable_samples(self) -> int:
        """Positions that batches cover: all, or all but the tail under `drop_last`."""
        tail = self.num_samples % self.batch_size if self.drop_last else 0
        return self.num_samples - tail

    @property
    def sizes(self) -> tuple[int, ...]:
        """That its micro-batches have, each once: the usual one, and those of smaller last ones."""
        whole, rest = divmod(self.usable_samples, self.batch_size)
        found = []
        for batch in (self.batch_size * bool(whole), rest):
            several, last = divmod(batch, self.micro_batch_size)
            found += [self.micro_batch_size * bool(several), last]
        return tuple(dict.fromkeys(size for size in found if size))

    @property
    def num_batches(self) -> int:
        return -(-self.usable_samples // self.batch_size)

    @property
    def epoch_micro_batches(self) -> int:
        """How many micro-batches an epoch has."""
        return self.num_micro_batches(self.usable_samples)

    def num_micro_batches(self, samples: int) -> int:
        """Of the first so many positions."""
        whole, rest = divmod(samples, self.batch_size)
        size = self.micro_batch_size
        return whole * -(-self.batch_size // size) + -(-rest // size)

    def bounds(self, start_position: int) -> Iterator[tuple[int, int]]:
        """(start, stop) of each micro-batch from `start_position`, where one begins, to the end of
        the epoch.
        """
        size, usable, start = self.micro_batch_size, self.usable_samples, start_position
        while start < usable:
            batch_end = (start // self.batch_size + 1) * self.batch_size
            stop = min(start + size, batch_end, usable)
            yield start, stop
            start = stop


Bucket = Mapping[str, int]
"""Rows of each packed array of a batch, by name."""
NO_BUCKET: Bucket = {}


@dataclass(frozen=True)
class BatchShapes:
    """Of one part's micro-batches. A batch has the first of its size's buckets that it fits into;
    one row of each packed array stays free at least.
    """

    by_size: Mapping[int, tuple[Bucket, ...]] = field(default_factory=dict)
    """Ascending; empty where no array is packed."""
    has_spare: bool = False
    """Whether the last bucket, where there are several, is for totals that no batch was seen to
    have: room for the largest samples of all.
    """

    @property
    def largest(self) -> Bucket:
        """Which all others fit into."""
        found: dict[str, int] = {}
        for buckets in self.by_size.values():
            found |= {name: max(rows, found.get(name, 0)) for name, rows in buckets[-1].items()}
        return found

    def usual(self, size: int) -> tuple[Bucket, ...]:
        """Those that batches of so many samples are expected to have."""
        buckets = self.by_size.get(size, (NO_BUCKET,))
        return buckets[:-1] if self.has_spare and len(buckets) > 1 else buckets

    def each(self, sizes: Iterable[int]) -> Iterator[tuple[int, Bucket]]:
        """The usual shapes of batches of these sizes."""
        return ((size, bucket) for size in sizes for bucket in self.usual(size))

    def bucket(self, size: int, totals: Bucket) -> Bucket:
        """Of a batch of so many samples, whose packed arrays have so many rows in all."""
        for one in self.by_size.get(size, (NO_BUCKET,)):
            if all(rows < one[name] for name, rows in totals.items()):
                return one
        raise RuntimeError(f"no batch of {size} samples has {totals} rows")


ONE_SHAPE = BatchShapes()


class Batches(Protocol):
    """One part of the data (training, validation or test) as a stream of batches.

    Which samples are in which batch depends on the seed, the epoch and the batch size alone:
    never on residency, chunk size or device.
    """

    @property
    def plan(self) -> BatchPlan:
        """Its samples, batch size and number of batches."""

    @property
    def shapes(self) -> BatchShapes:
        """Which its packed arrays may have."""

    @property
    def counters(self) -> Counters:
        """What it read, and how many chunks were ready."""

    def place(self, size: int, bucket: Bucket) -> Mapping[str, Tensor] | None:
        """The memory that each gathered batch of this shape comes into, which a captured step can
        read where it lies. None if batches come in memory of their own.
        """

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        """The micro-batches of an epoch (0, 1, …) from `start_position` samples on; at most one
        iteration of a part is under way at a time: a new one ends the one before.

        (epoch, position) is all the state there is: iterating from the number of samples that were
        given so far gives exactly the batches that would have followed. Close the iterator, or the
        part, to stop in mid-epoch. Raises DataError and DatasetChanged from any batch.
        """

    def close(self) -> None:
        """End what is under way and give the memory back."""
