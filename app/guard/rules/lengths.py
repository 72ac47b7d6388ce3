"""Rules about arrays whose samples differ in length: ragged ones, and graphs."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.guard.rules.data import each_array, shown

MOST_FILLING = 0.75


@rule(
    "correctness.ragged_array",
    overridable=False,
    stands_on="What the recipe computes: as many numbers for every sample, unless it says that it "
    "reads samples of different lengths.",
)
def ragged_array(case: Case) -> Iterator[Finding]:
    """Arrays are ragged only where the recipe takes samples of different lengths."""
    spec = case.spec
    taken = spec.recipe.takes_ragged
    for loc, dataset, array in each_array(case):
        found = dataset.fields.get(array)
        if found is None or found.lengths is None or not found.is_ragged:
            continue
        part = "targets" if array in spec.data.targets else "inputs"
        if part in taken:
            continue
        shortest, longest = found.lengths.shortest, found.lengths.longest
        yield Finding(
            loc,
            f"{array!r} of {dataset.name!r} is ragged: its samples have {shortest:,} to "
            f"{longest:,} values of {shown(found, 1)} each; {part} of the recipe "
            f"{spec.recipe.kind} all have one shape.",
            "It computes as many numbers for one sample as for another. Pad or cut the samples to "
            f"one length: `stoker data convert FILE --pad {longest}`. Then register the new file "
            "and name it in data.dataset.",
        )


@rule(
    "correctness.packed_array",
    overridable=False,
    stands_on="What the recipe computes: a batch of packed graphs has as many rows as these have "
    "nodes, and only a recipe that says so can tell which are whose.",
)
def packed_array(case: Case) -> Iterator[Finding]:
    """Arrays are packed graphs only where the recipe takes graphs."""
    recipe = case.spec.recipe
    for loc, dataset, array in each_array(case):
        found = dataset.fields.get(array)
        part = "targets" if array in case.spec.data.targets else "inputs"
        if found is None or found.edges is None or part in recipe.takes_packed:
            continue
        yield Finding(
            loc,
            f"{array!r} of {dataset.name!r} is packed: its samples are graphs, and the recipe "
            f"{recipe.kind} takes none as one of its {part}.",
            "Its layers expect as many numbers of one sample as of another. Name another array, or "
            "train with a recipe that takes graphs.",
        )


@rule(
    "speed.mostly_filling",
    severity="warning",
    stands_on="All samples of a batch have the steps of the longest: a step of the recipe's "
    "defaults with 128 samples of 24 hours took 1.4 ms, and filled up to 240 hours 7.4.",
    measured_by="mostly_filling",
)
def mostly_filling(case: Case) -> Iterator[Finding]:
    """Samples of different lengths are filled up to no more than four times their mean."""
    dataset = case.dataset_as_read
    for position, name in enumerate(case.spec.data.inputs):
        array = dataset.fields.get(name)
        if array is None or array.lengths is None or not array.is_ragged:
            continue
        if not array.lengths.mean:
            continue
        longest, mean = array.shape[0], array.lengths.mean
        if 1 - mean / longest <= MOST_FILLING:
            continue
        yield Finding(
            ("data", "inputs", position),
            f"Samples of {name!r} have {mean:,.1f} values on average, and in a batch each is "
            f"filled up to {longest:,}: {1 - mean / longest:.0%} of it are zeros.",
            f"A batch takes {longest / mean:,.0f} times the memory and the steps of its values. "
            "Where few samples are so long, leave them out of the file, or cut them: `stoker data "
            "convert FILE --pad LENGTH` keeps the first values of each.",
        )
