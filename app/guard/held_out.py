"""Rows of a run's validation and test parts that another run's training part has, too."""

from dataclasses import dataclass

from app.guard.facts import DatasetFacts, UnknownFact, known
from app.planning.arithmetic import group_parts, part_ranges
from app.spec.data import (
    ChronologicalSplit,
    Data,
    DatasetsSplit,
    FieldSplit,
    GroupSplit,
    RandomSplit,
)

TRAINING, VALIDATION, TEST = 0, 1, 2
FILE = ("file",)


@dataclass(frozen=True)
class _Rows:
    """Some rows of a dataset, as a split draws them.

    `source` says what they are drawn by: the order of the file, a shuffled order with its seed, or
    a field. They are a range of positions in that order, or those with some values of the field.
    """

    source: tuple[object, ...]
    count: int
    places: range = range(0)
    values: frozenset[int] = frozenset()

    @property
    def is_random(self) -> bool:
        return self.source[0] == "random"


def samples_trained_on(trained: Data, child: Data, dataset: DatasetFacts) -> float:
    """Returns how many of the child's held-out rows of `dataset` are in the training part of
    `trained`, which is of this dataset.

    The number is exact where both splits draw from one order or one field. For two independent
    draws it is the expected number, from which thousands of rows hardly differ. UnknownFact where
    neither holds.
    """
    samples = known(dataset.samples, f"the samples of the dataset {dataset.name}")
    training = _rows_of(trained, dataset, samples, TRAINING)
    held_out = [_rows_of(child, dataset, samples, part) for part in (VALIDATION, TEST)]
    return sum(_common(training, rows, dataset, samples) for rows in held_out if rows.count)


def _rows_of(data: Data, dataset: DatasetFacts, samples: int, part: int) -> _Rows:
    """Returns the rows of `dataset` that are in this part of a run with this data."""
    split = data.split
    if isinstance(split, DatasetsSplit):
        names = (data.dataset, split.validation, split.test)
        is_whole = names[part] == dataset.name
        return _Rows(FILE, samples, range(samples)) if is_whole else _Rows(FILE, 0)
    if data.dataset != dataset.name:
        return _Rows(FILE, 0)
    if isinstance(split, GroupSplit):
        buckets = known(dataset.groups.get(split.field), f"the groups of {split.field!r}")
        values = frozenset(at for at, of in enumerate(group_parts(split)) if of == part)
        count = sum(buckets[bucket] for bucket in values)
        return _Rows(("groups", split.field), count, values=values)
    if isinstance(split, FieldSplit):
        field = dataset.fields.get(split.field)
        parts = None if field is None else field.parts
        sizes = known(parts, f"which part each sample of {dataset.name} is in").sizes
        return _Rows(("field", split.field), sizes[part], values=frozenset({part}))
    return _rows_of_cut(split, samples, part)


def _rows_of_cut(split: ChronologicalSplit | RandomSplit, samples: int, part: int) -> _Rows:
    """Returns where the trainer's `split_samples` cuts."""
    cuts = part_ranges(split, samples)
    source = ("random", split.seed) if isinstance(split, RandomSplit) else FILE
    return _Rows(source, len(cuts[part]), cuts[part])


def _common(one: _Rows, other: _Rows, dataset: DatasetFacts, samples: int) -> float:
    """Returns how many rows the two have in common, or are expected to have."""
    if one.count == samples or other.count == samples:
        return min(one.count, other.count)
    if one.source != other.source:
        if one.is_random or other.is_random:
            return one.count * other.count / samples
        raise UnknownFact(
            f"which samples of {dataset.name} both splits have, for they cut it in different ways"
        )
    if one.source[0] == "groups":
        buckets = dataset.groups[str(one.source[1])]
        return sum(buckets[bucket] for bucket in one.values & other.values)
    if one.source[0] == "field":
        return one.count if one.values == other.values else 0
    first, last = max(one.places.start, other.places.start), min(one.places.stop, other.places.stop)
    return max(0, last - first)
