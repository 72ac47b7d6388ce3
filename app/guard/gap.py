"""The gap of a chronological split: samples left out so that no two parts share a step."""

from app.guard.facts import DatasetFacts, known
from app.planning.arithmetic import part_sizes
from app.spec.data import ChronologicalSplit, Data


def neighbours_sharing_steps(data: Data, dataset: DatasetFacts) -> int:
    """Samples after one that share steps of their series with it: in windows that slide over it, or
    in what is forecast from them. 0 for samples that are no windows; UnknownFact.
    """
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    shapes = {name: array.shape for name, array in dataset.fields.items() if name in moved_on}
    targets = [dataset.fields[name].shape for name in data.targets if name in dataset.fields]
    horizon = max((shape[0] for shape in targets if shape), default=0)
    spans = {name: shapes[name][0] for name in data.targets if name in shapes}
    spans |= {name: shapes[name][0] + horizon for name in data.inputs if name in shapes}
    return max((-(-span // moved_on[name]) - 1 for name, span in spans.items()), default=0)


def gap_needed(data: Data, dataset: DatasetFacts) -> int:
    """Samples to leave out at each border of a chronological split, so that no two parts share a
    step of a series: none where a series ends at the border. UnknownFact.
    """
    split, neighbours = data.split, neighbours_sharing_steps(data, dataset)
    samples = known(dataset.samples, f"the samples of the dataset {dataset.name}")
    assert isinstance(split, ChronologicalSplit)  # noqa: S101 - no other has borders
    breaks = breaks_of_all(data, dataset)
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


def leaves_enough(split: ChronologicalSplit, gap: int, samples: int) -> bool:
    """Whether at least half of what would be trained on without a gap is left beside one."""
    with_gap, without = (
        part_sizes(split.model_copy(update={"gap": size}), samples).training for size in (gap, 0)
    )
    return 2 * with_gap >= without
