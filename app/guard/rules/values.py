"""Rules about what the arrays hold: finite, scaled, and in an order that the shuffle can mend."""

from collections.abc import Iterator

from app.guard.case import Case, Loc
from app.guard.facts import DatasetFacts, FieldFacts, known
from app.guard.gap import leaves_enough
from app.guard.rule import Finding, rule
from app.planning.arithmetic import gap_of
from app.spec.data import ChronologicalSplit, ChunkedLoader, DatasetsSplit, RandomSplit

# Beyond these a network that starts with outputs around 0 and 1 has a long way to go.
LARGEST_STD, SMALLEST_STD, LARGEST_OFFSET = 10.0, 0.1, 10.0


def _fields(dataset: DatasetFacts, names: tuple[str, ...]) -> Iterator[tuple[int, str, FieldFacts]]:
    for position, name in enumerate(names):
        if name in dataset.fields:
            yield position, name, dataset.fields[name]


@rule(
    "correctness.nonfinite_values",
    overridable=False,
    stands_on="One NaN in a batch makes every weight NaN; the trainer ends such a run.",
)
def nonfinite_values(case: Case) -> Iterator[Finding]:
    """The arrays of the run hold no NaN and no infinity, in any of its datasets."""
    spec = case.spec
    for where, named in case.named_datasets:
        dataset = case.inspected(named)
        for part, names in (("inputs", spec.data.inputs), ("targets", spec.data.targets)):
            for position, name, array in _fields(dataset, names):
                if known(array.nonfinite, f"the NaN count of {name!r} in {dataset.name}"):
                    in_main = named == spec.data.dataset
                    loc: Loc = ("data", part, position) if in_main else where
                    yield _not_finite(loc, name, dataset, array)


def _not_finite(loc: Loc, name: str, dataset: DatasetFacts, array: FieldFacts) -> Finding:
    return Finding(
        loc,
        f"{name!r} of the dataset {dataset.name!r} holds {array.nonfinite:,} NaN or infinite "
        "values in the sampled rows.",
        "The first batch with one of them makes the loss or the score NaN, and the run fails; "
        "fill or remove them in the file and register it again.",
    )


@rule(
    "learning.unscaled",
    stands_on="LeCun et al., Efficient BackProp, 1998, section 4.3: inputs and targets of mean 0 "
    "and deviation 1 converge faster.",
)
def unscaled(case: Case) -> Iterator[Finding]:
    """Arrays far from mean 0 and deviation 1 are standardized."""
    spec = case.spec
    dataset, wanted = case.dataset, spec.data.standardize
    for part, names, on in (
        ("inputs", spec.data.inputs, wanted.inputs),
        ("targets", spec.data.targets, wanted.targets),
    ):
        for _, name, array in () if on else _fields(dataset, names):
            std = known(array.std, f"the spread of {name!r} in {dataset.name}")
            mean = known(array.mean, f"the mean of {name!r} in {dataset.name}")
            if SMALLEST_STD <= std <= LARGEST_STD and abs(mean) <= LARGEST_OFFSET:
                continue
            yield Finding(
                ("data", "standardize", part),
                f"{name!r} has mean {mean:.4g} and deviation {std:.4g}, and is not standardized.",
                "The network starts with values around 0 and 1 and would spend its first epochs, "
                "or all of them, on reaching the scale.",
                {f"/data/standardize/{part}": True},
            )


@rule(
    "correctness.leaking_split",
    overridable=False,
    stands_on="Kapoor & Narayanan, Leakage and the reproducibility crisis, 2023: shared rows make "
    "validation scores look better than they are.",
)
def leaking_split(case: Case) -> Iterator[Finding]:
    """No part has samples of another: parts are datasets of their own, and windows that overlap
    are not split at random, and in their order with a gap that no step reaches over."""
    spec = case.spec
    if isinstance(spec.data.split, DatasetsSplit):
        yield from _same_dataset(spec.data.dataset, spec.data.split)
    if isinstance(spec.data.split, ChronologicalSplit):
        yield from _over_the_border(case, spec.data.split)
    if not isinstance(spec.data.split, RandomSplit):
        return
    dataset = case.dataset
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    for _, name, array in _fields(dataset, spec.data.inputs):
        if name in moved_on:
            steps, by = array.shape[0], moved_on[name]
            yield Finding(
                ("data", "split", "method"),
                f"{name!r} holds windows of one series, each moved on by {by} "
                f"{'step' if by == 1 else 'steps'}, and the split is random.",
                f"Nearly every validation window then shares {steps - by} of its {steps} steps "
                "with a training window: the score would be that of data it has seen.",
                {"/data/split/method": "chronological"},
            )


def _over_the_border(case: Case, split: ChronologicalSplit) -> Iterator[Finding]:
    """Only the samples next to a border, so that the score is hardly changed: a warning."""
    sizes = case.sizes
    gap, needed = gap_of(split), case.gap_needed
    held_out = sizes.validation or sizes.test
    if gap >= needed or not held_out:
        return
    has_room = leaves_enough(split, needed, case.samples)
    part = "validation" if sizes.validation else "test"
    shared = min(needed - gap, held_out)
    yield Finding(
        ("data", "split", "gap"),
        f"{shared:,} of {held_out:,} {part} samples share steps of the series with training "
        "samples.",
        f"A window and what is forecast from it reach over {needed:,} samples behind it, and the "
        f"split leaves out {gap:,} at the border: a model may know a part of the answers."
        + ("" if has_room else " The dataset is too small to leave out so many."),
        {"/data/split/gap": needed} if has_room else {},
        severity="warning",
    )


def _same_dataset(trained: str, split: DatasetsSplit) -> Iterator[Finding]:
    """One finding alone: what mends the validation part, a cut of one dataset, mends both."""
    if split.validation == trained:
        yield Finding(
            ("data", "split", "validation"),
            f"The validation part is {trained!r}, which is what the run trains on.",
            "Every validation sample, 100 %, would be one that was trained on: the score would "
            "tell nothing, and which checkpoint is best would be the one that overfits most.",
            {"/data/split": {"method": "chronological"}} if split.test in (None, trained) else {},
        )
    elif split.test in (trained, split.validation):
        used = "trains on" if split.test == trained else "chooses its best checkpoint by"
        yield Finding(
            ("data", "split", "test"),
            f"The test part is {split.test!r}, which is what the run {used}.",
            "A test tells how good the model is on samples that had no part in making it, and here "
            "all of them had.",
            {"/data/split/test": None},
        )


@rule(
    "correctness.target_is_input",
    overridable=False,
    stands_on="A model that is given the answer learns to copy it.",
)
def target_is_input(case: Case) -> Iterator[Finding]:
    """No array is both input and target."""
    for position, name in enumerate(case.spec.data.targets):
        if name in case.spec.data.inputs:
            yield Finding(
                ("data", "targets", position),
                f"{name!r} is both input and target.",
                "The model would be shown what it is to forecast, and its score would be that of "
                "copying. Take it out of data.inputs, or forecast another array.",
            )


def _sorted_target(case: Case) -> str | None:
    """The target that only rises along the file, if there is one."""
    dataset = case.dataset
    for _, name, array in _fields(dataset, case.spec.data.targets):
        if known(array.sorted, f"whether {name!r} is sorted in {dataset.name}"):
            return name
    return None


@rule(
    "learning.sorted_blocks",
    stands_on="Blocks and a permutation inside a group of them converge like a full shuffle unless "
    "the file is sorted by label.",
)
def sorted_blocks(case: Case) -> Iterator[Finding]:
    """Data that is sorted by its target is shuffled as a whole."""
    loader, (kind, _) = case.spec.data.loader, case.order
    name = _sorted_target(case) if kind != "full" else None
    if name is not None:
        how = "in groups of neighbouring blocks" if kind == "block" else "not at all"
        yield Finding(
            ("data", "loader", "shuffle"),
            f"The file is sorted by {name!r}, and the samples are shuffled {how}.",
            "Long stretches of steps would see nearly one target value each, and unlearn the rest.",
            {"/data/loader/shuffle": "full"}
            | ({"/data/loader/shuffle_group": "auto"} if isinstance(loader, ChunkedLoader) else {}),
        )


@rule(
    "learning.sorted_split",
    severity="warning",
    stands_on="A chronological cut of data sorted by label trains and validates on different ones.",
)
def sorted_split(case: Case) -> Iterator[Finding]:
    """Data that is sorted by its target is not cut in the order of the file."""
    split = case.spec.data.split
    if not isinstance(split, ChronologicalSplit):
        return
    if split.validation_fraction + split.test_fraction == 0:
        return
    dataset = case.dataset
    if known(dataset.window_steps, f"whether windows overlap in {dataset.name}"):
        return  # a series that only rises; a random split of its windows would leak
    name = _sorted_target(case)
    if name is not None:
        yield Finding(
            ("data", "split", "method"),
            f"The file is sorted by {name!r}, and the split cuts it in its order.",
            "The last targets would be in the validation part alone: the score would tell how well "
            "the model does on what it never saw.",
            {"/data/split/method": "random"},
        )


RULES = (
    nonfinite_values,
    unscaled,
    leaking_split,
    target_is_input,
    sorted_blocks,
    sorted_split,
)
