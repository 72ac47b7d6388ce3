"""Counts that follow from a spec: samples of each part, steps, evaluations, log interval."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from app.spec.data import ChronologicalSplit, GroupSplit, RandomSplit, Split
from app.spec.training import Evaluation, Training


class PartSizes(NamedTuple):
    """Samples of each part."""

    training: int
    validation: int
    test: int


def gap_of(split: Split) -> int:
    """Samples left out at each border of two parts. `auto` is settled when a spec is resolved; one
    that is stored without is of a run that was split without.
    """
    if not isinstance(split, ChronologicalSplit) or split.gap == "auto":
        return 0
    return split.gap


def part_sizes(split: ChronologicalSplit | RandomSplit, num_samples: int) -> PartSizes:
    """Samples of each part when one dataset of `num_samples` is cut by fractions. Gaps are taken
    from the training part.
    """
    validation = round(num_samples * split.validation_fraction)
    test = round(num_samples * split.test_fraction)
    gaps = gap_of(split) * ((validation > 0) + (test > 0))
    return PartSizes(max(0, num_samples - validation - test - gaps), validation, test)


def part_ranges(
    split: ChronologicalSplit | RandomSplit, num_samples: int
) -> tuple[range, range, range]:
    """Returns where training, validation and test lie: in the order of the file, or in that of a
    random split's permutation.
    """
    sizes = part_sizes(split, num_samples)
    test = num_samples - sizes.test
    end = test - (gap_of(split) if sizes.test else 0)
    return range(sizes.training), range(end - sizes.validation, end), range(test, num_samples)


# A group falls into one of so many, evenly; each part has a share of them.
GROUP_BUCKETS = 100


def group_parts(split: GroupSplit) -> list[int]:
    """Which part each bucket of groups is in: 0 training, 1 validation, 2 test. A larger test part
    takes groups from the training alone.
    """
    validation = round(GROUP_BUCKETS * split.validation_fraction)
    test = round(GROUP_BUCKETS * split.test_fraction)
    return [1] * validation + [2] * test + [0] * (GROUP_BUCKETS - validation - test)


def group_sizes(split: GroupSplit, buckets: Sequence[int]) -> PartSizes:
    """Samples of each part, from those of each bucket."""
    sizes = [0, 0, 0]
    for part, samples in zip(group_parts(split), buckets, strict=True):
        sizes[part] += samples
    return PartSizes(*sizes)


def batches_per_epoch(training: Training, num_samples: int) -> int:
    """Micro-batches of one epoch, the last one smaller where samples are left over."""
    whole, rest = divmod(num_samples, training.batch_size)
    return whole if training.drop_last or rest == 0 else whole + 1


def steps_per_epoch(training: Training, num_samples: int) -> int:
    """Optimizer steps of one epoch; a last partial accumulation window counts as a step."""
    return -(-batches_per_epoch(training, num_samples) // training.gradient_accumulation_steps)


def total_steps(training: Training, num_samples: int) -> int:
    """Optimizer steps of the whole run, unless it ends early."""
    steps = training.epochs * steps_per_epoch(training, num_samples)
    return steps if training.max_steps is None else min(steps, training.max_steps)


def threads_of_slot(cores: int, slots: int) -> int:
    """Threads of a run that has a core for each, when `slots` runs share the host's evenly."""
    return max(1, cores // max(1, slots))


def is_due(interval: int | None, count: int) -> bool:
    """Whether something that happens every so often does after `count`."""
    return interval is not None and count % interval == 0


def evaluations(wanted: Evaluation, steps: int, epoch_steps: int) -> int:
    """After how many of the steps an evaluation is due: by steps, by epochs, and at the end.

    Steps at which several of them meet count once. `epoch_steps` is above 0 where `steps` is.
    """
    if steps == 0:
        return 0
    intervals = _intervals(wanted, epoch_steps)
    at_end = any(is_due(interval, steps) for interval in intervals)
    return _due(intervals, steps) + (not at_end)


def step_of_evaluation(wanted: Evaluation, number: int, steps: int, epoch_steps: int) -> int:
    """After which of the steps evaluation `number` (from 1) comes; all of them for one after it."""
    intervals = _intervals(wanted, epoch_steps)
    return min(steps, bisect_left(range(steps), number, key=lambda step: _due(intervals, step)))


def _intervals(wanted: Evaluation, epoch_steps: int) -> list[int]:
    """Steps between two evaluations, by steps and by epochs."""
    intervals = [] if wanted.every_steps is None else [wanted.every_steps]
    if wanted.every_epochs is not None:
        intervals.append(wanted.every_epochs * epoch_steps)
    return intervals


def _due(intervals: list[int], steps: int) -> int:
    """How often one of them is over within so many steps."""
    due = sum(steps // interval for interval in intervals)
    return due - steps // math.lcm(*intervals) if len(intervals) == 2 else due


def evaluation_batch(wanted: Evaluation, training: Training) -> int:
    """Samples of a batch of evaluation; auto is the training's."""
    return training.batch_size if wanted.batch_size == "auto" else wanted.batch_size


def log_interval(training: Training, steps: int) -> int:
    """Optimizer steps between two log points; a function of the spec alone, never of time."""
    if training.log_every_steps == "auto":
        return max(1, min(50, steps // 200))
    return training.log_every_steps
