"""Which samples train, which validate and which test."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.planning.arithmetic import PartSizes, gap_of, part_sizes
from app.spec.data import ChronologicalSplit, Data, DatasetsSplit, FieldSplit, RandomSplit
from worker.trainer.data.order import Purpose, permutation
from worker.trainer.data.source import Rows
from worker.trainer.errors import SpecMismatch


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


@dataclass(frozen=True)
class Parts:
    train: Part
    validation: Part
    test: Part | None

    @property
    def non_empty(self) -> list[Part]:
        return [part for part in (self.train, self.validation, self.test) if part]


def split_samples(data: Data, samples: Mapping[str, int], seed: int) -> Parts:
    """The parts of a run; `samples` gives the number of samples of each dataset it names.

    Raises SpecMismatch when a part that was asked for would be empty.
    """
    split, count = data.split, samples[data.dataset]
    if isinstance(split, FieldSplit):
        raise SpecMismatch("Splitting by a field is not available yet; use method chronological.")
    if isinstance(split, DatasetsSplit):
        whole = {name: Part(name, range(number)) for name, number in samples.items()}
        test = whole[split.test] if split.test else None
        return Parts(whole[data.dataset], whole[split.validation], test)
    num_train, num_validation, num_test = _checked_sizes(split, count)
    end = count - num_test - (gap_of(split) if num_test else 0)
    cuts = (slice(0, num_train), slice(end - num_validation, end), slice(count - num_test, count))
    if isinstance(split, RandomSplit):
        shuffled = permutation(seed, Purpose.split, 0, 0, count)
        return Parts(*(Part(data.dataset, np.sort(shuffled[cut])) for cut in cuts))
    return Parts(*(Part(data.dataset, range(count)[cut]) for cut in cuts))


def _checked_sizes(split: ChronologicalSplit | RandomSplit, count: int) -> PartSizes:
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
    return sizes
