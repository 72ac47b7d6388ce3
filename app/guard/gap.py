"""Windows of two parts that share steps of one series, and the gap that keeps them apart."""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from app.guard.facts import DatasetFacts, known
from app.planning.arithmetic import group_parts, part_sizes
from app.spec.data import ChronologicalSplit, Data, GroupSplit
from app.spec.run import RunSpec


def neighbours_sharing_steps(spec: RunSpec, dataset: DatasetFacts) -> int:
    """Samples after one that share steps of their series with it: in windows that slide over it, or
    in what is forecast from them. 0 for samples that are no windows; UnknownFact.
    """
    data = spec.data
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    shapes = {name: array.shape for name, array in dataset.fields.items() if name in moved_on}
    horizon = spec.recipe.forecast_steps(data)
    if horizon is None:
        targets = [dataset.fields[name] for name in data.targets if name in dataset.fields]
        ahead = [one.horizons or one.shape[:1] or (0,) for one in targets]
        horizon = max((max(one) for one in ahead), default=0)
    spans = {name: shapes[name][0] for name in data.targets if name in shapes}
    spans |= {name: shapes[name][0] + horizon for name in data.inputs if name in shapes}
    return max((-(-span // moved_on[name]) - 1 for name, span in spans.items()), default=0)


def gap_needed(spec: RunSpec, dataset: DatasetFacts) -> int:
    """Samples to leave out at each border of a chronological split, so that no two parts share a
    step of a series: none where a series ends at the border. UnknownFact.
    """
    split, neighbours = spec.data.split, neighbours_sharing_steps(spec, dataset)
    samples = known(dataset.samples, f"the samples of the dataset {dataset.name}")
    assert isinstance(split, ChronologicalSplit)  # noqa: S101 - no other has borders
    breaks = breaks_of_all(spec.data, dataset)
    gap = 0
    while True:  # a gap moves the border before it, and only grows
        sizes = part_sizes(split.model_copy(update={"gap": gap}), samples)
        test = samples - sizes.test
        validation = test - (gap if sizes.test else 0) - sizes.validation
        borders = [validation] * bool(sizes.validation) + [test] * bool(sizes.test)
        begun = [max((b for b in breaks if b <= border), default=0) for border in borders]
        shared = (min(neighbours, at - start) for at, start in zip(borders, begun, strict=True))
        if (needed := max(shared, default=0)) <= gap:
            return gap
        gap = needed


def breaks_of_all(data: Data, dataset: DatasetFacts) -> set[int]:
    """Where another series begins in all inputs that are windows; in the targets only where no
    input is: a few values of a forecast may come again by chance, and hide a break.
    """
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    names = [name for name in data.inputs if name in moved_on] or data.targets
    return set.intersection(*(set(dataset.breaks.get(name) or ()) for name in names))


class Stretch(NamedTuple):
    """Neighbouring samples of one series in one part: the first of them, and the first behind."""

    begin: int
    end: int
    part: int
    """0 training, 1 validation, 2 test."""


def stretches_of_groups(
    split: GroupSplit, begins: Sequence[tuple[int, int]], breaks: Collection[int], samples: int
) -> list[list[Stretch]]:
    """Of each series, which samples are in which part. `begins`: the samples at which another
    bucket of groups begins, and which; `breaks`: those at which another series does.
    """
    parts = group_parts(split)
    part_at = {begin: parts[bucket] for begin, bucket in begins}
    found: list[list[Stretch]] = []
    part, places = 0, sorted({0, *part_at, *breaks})
    for begin, end in pairwise([*places, samples]):
        part = part_at.get(begin, part)
        if begin == 0 or begin in breaks:
            found.append([])
        found[-1].append(Stretch(begin, end, part))
    return found


def held_out_beside_training(series: Sequence[Sequence[Stretch]], neighbours: int) -> int:
    """Samples of validation and test that a training sample of their series is so near to, or
    nearer.
    """
    count = 0
    for stretches in series:
        trained = [one for one in stretches if one.part == 0]
        for one in (one for one in stretches if one.part != 0):
            before = max((t.end for t in trained if t.end <= one.begin), default=-neighbours)
            after = min((t.begin for t in trained if t.begin >= one.end), default=math.inf)
            reached = max(0, before + neighbours - one.begin) + max(0, one.end - after + neighbours)
            count += int(min(one.end - one.begin, reached))
    return count


def leaves_enough(split: ChronologicalSplit, gap: int, samples: int) -> bool:
    """Whether at least half of what would be trained on without a gap is left beside one."""
    with_gap, without = (
        part_sizes(split.model_copy(update={"gap": size}), samples).training for size in (gap, 0)
    )
    return 2 * with_gap >= without
