"""Which samples train, which validate and which test."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.planning.arithmetic import PartSizes, part_ranges, part_sizes
from app.spec.data import (
    ChronologicalSplit,
    Data,
    DatasetsSplit,
    FieldSplit,
    GroupSplit,
    RandomSplit,
)
from worker.trainer.data.order import Purpose, permutation
from worker.trainer.data.source import Rows
from worker.trainer.errors import DataError, SpecMismatch


@dataclass(frozen=True)
class Part:
    """Rows of one dataset, ascending: a range, or an array where they are scattered."""

    dataset: str
    rows: range | Rows

    def __len__(self) -> int:
        return len(self.rows)

    def all_rows(self) -> Rows:
        """The dataset's rows, ascending."""
        return self.take(np.arange(len(self)))

    def take(self, indices: Rows) -> Rows:
        """The dataset's rows at these places (0 … len - 1) of the part."""
        if isinstance(self.rows, range):
            return indices + self.rows.start
        return self.rows[indices]

    def spaced(self, batch_size: int, most: int | None) -> "Part":
        """Returns `most` whole batches at even distances, as one part; itself if it has no more.
        It depends on nothing else, so every evaluation of a run has the same samples.
        """
        if most is None or most * batch_size >= len(self):
            return self
        stride = len(self) // batch_size / most
        first = ((np.arange(most) + 0.5) * stride).astype(np.int64) * batch_size
        places = first[:, None] + np.arange(batch_size)
        return Part(self.dataset, self.take(places.ravel()))


@dataclass(frozen=True)
class Parts:
    train: Part
    validation: Part
    test: Part | None

    @property
    def non_empty(self) -> list[Part]:
        return [part for part in (self.train, self.validation, self.test) if part]


# Which number stands for which part, in a field that says it.
FIRST_OF_NO_PART = len(PartSizes._fields)


def first_that_is_no_part(values: NDArray[Any]) -> int | None:
    """The place of the first number that stands for no part."""
    strays = np.flatnonzero((values < 0) | (values >= FIRST_OF_NO_PART))
    return int(strays[0]) if len(strays) else None


def parts_by_number(field: str, begin: int, values: NDArray[Any]) -> NDArray[np.int8]:
    """What a field says of the samples from number `begin`. Raises DataError."""
    stray = first_that_is_no_part(values)
    if stray is not None:
        raise DataError(
            f"Sample {begin + stray:,} has {values[stray]} in {field!r}, which splits the samples:"
            " 0 is training, 1 validation, 2 test. Write one of these for every sample, register"
            " the file again and restart the run."
        )
    return values.astype(np.int8)


def split_samples(
    data: Data,
    samples: Mapping[str, int],
    numbers: NDArray[np.int8] | None = None,
) -> Parts:
    """The parts of a run; `samples` gives the number of samples of each dataset it names, and
    `numbers` the part of each where a field says it.

    Raises SpecMismatch when a part that was asked for would be empty.
    """
    split, count = data.split, samples[data.dataset]
    if isinstance(split, FieldSplit | GroupSplit):
        return _by_number(data.dataset, count, split, numbers)
    if isinstance(split, DatasetsSplit):
        whole = {name: Part(name, range(number)) for name, number in samples.items()}
        test = whole[split.test] if split.test else None
        return Parts(whole[data.dataset], whole[split.validation], test)
    _require_samples(split, count)
    ranges = part_ranges(split, count)
    if isinstance(split, RandomSplit):
        shuffled = permutation(split.seed, Purpose.split, 0, 0, count)
        each = (shuffled[one.start : one.stop] for one in ranges)
        return Parts(*(Part(data.dataset, np.sort(rows)) for rows in each))
    return Parts(*(Part(data.dataset, one) for one in ranges))


def _by_number(
    dataset: str, samples: int, split: FieldSplit | GroupSplit, numbers: NDArray[np.int8] | None
) -> Parts:
    assert numbers is not None  # noqa: S101 - they are read where a field splits
    if len(numbers) != samples:
        raise DataError(
            f"{split.field!r} has {len(numbers):,} rows and the dataset {samples:,} samples; write "
            "one for each, and register the file again."
        )
    train, validation, test = (
        Part(dataset, np.flatnonzero(numbers == number).astype(np.int64, copy=False))
        for number in range(FIRST_OF_NO_PART)
    )
    if isinstance(split, GroupSplit):
        _require_groups(split, {"validation": len(validation), "test": len(test)}, len(train))
    if not train:
        raise SpecMismatch(
            f"{split.field!r} is 0 for no sample, so there is nothing to train on: 0 is training, 1"
            " validation, 2 test."
        )
    return Parts(train, validation, test)


def _require_groups(split: GroupSplit, held_out: Mapping[str, int], trained_on: int) -> None:
    empty = [
        name for name, size in held_out.items() if getattr(split, f"{name}_fraction") and not size
    ]
    if empty or not trained_on:
        part = empty[0] if empty else "training"
        raise SpecMismatch(
            f"No group of {split.field!r} falls into the {part} part; change the fractions of "
            "data.split, or take a field with more groups."
        )


def _require_samples(split: ChronologicalSplit | RandomSplit, count: int) -> None:
    sizes = part_sizes(split, count)
    for name in ("validation", "test"):
        fraction = getattr(split, f"{name}_fraction")
        if fraction > 0 and getattr(sizes, name) == 0:
            raise SpecMismatch(
                f"data.split.{name}_fraction {fraction} of {count:,} samples is none, so there"
                " would be nothing to measure on; raise the fraction, or set it to 0."
            )
    if sizes.training <= 0:
        raise SpecMismatch(
            f"The split holds out all {count:,} samples, so there is nothing to train on; lower"
            " data.split.validation_fraction, test_fraction or gap, or use a larger dataset."
        )
