"""Rules about data.split: parts are large enough, and know nothing of each other's samples."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from app.guard.case import Case, Loc
from app.guard.facts import AncestorFacts, UnknownFact, known
from app.guard.gap import (
    breaks_of_all,
    held_out_beside_training,
    leaves_enough,
    neighbours_sharing_steps,
    stretches_of_groups,
)
from app.guard.held_out import samples_trained_on
from app.guard.rule import Finding, rule
from app.guard.rules.data import named_fields
from app.guard.wording import share
from app.planning.arithmetic import gap_of, part_ranges
from app.planning.labels import lacking_sentence
from app.spec.data import (
    ChronologicalSplit,
    Data,
    DatasetsSplit,
    FieldSplit,
    GroupSplit,
    RandomSplit,
)
from app.suggest import closest, did_you_mean

LARGEST_HELD_OUT = 0.25
# Each part, and the field of a split in the order of the file that says how large it is.
PLACES_OF_PARTS = {
    "training": "method",
    "validation": "validation_fraction",
    "test": "test_fraction",
}
# What a field is called that says which part a sample belongs to.
NAMES_OF_PARTS = ("split", "part", "subset", "fold")
WHAT_IT_HOLDS = "It has one whole number for each sample: 0 training, 1 validation, 2 test."


@rule(
    "correctness.split_field",
    overridable=False,
    stands_on="A sample whose part is not said can be in none.",
)
def split_field(case: Case) -> Iterator[Finding]:
    """A field that splits the samples has 0, 1 or 2 for each: training, validation or test."""
    split, dataset = case.spec.data.split, case.dataset
    if not isinstance(split, FieldSplit):
        return
    field, loc = dataset.fields.get(split.field), ("data", "split", "field")
    able = [name for name, one in dataset.fields.items() if one.parts is not None]
    if field is None:
        meant = closest(split.field, able) or (able[0] if len(able) == 1 else None)
        there = ", ".join(sorted(dataset.fields)) or "none"
        start = f"{split.field!r} "  # of a column of words, the inspection says that it is none
        as_groups = {"method": "groups", "field": split.field}
        left_out = next((told for told in dataset.problems if told.startswith(start)), None)
        yield Finding(
            loc,
            f"The dataset {dataset.name!r} has no field {split.field!r}; it has {there}."
            + did_you_mean(meant),
            WHAT_IT_HOLDS + (f" Its inspection found: {left_out}" if left_out else ""),
            {"/data/split": as_groups}
            if split.field in dataset.groups
            else {"/data/split/field": meant}
            if meant
            else {},
        )
    elif field.shape or field.lengths is not None or field.dtype.startswith("float"):
        yield Finding(
            loc,
            f"{split.field!r} of {dataset.name!r} has samples of {field.dtype} {field.shape}, and "
            "cannot say which part a sample belongs to.",
            WHAT_IT_HOLDS,
            {"/data/split/field": able[0]} if len(able) == 1 else {},
        )
    elif field.not_a_part is not None:
        sample, value = field.not_a_part
        yield Finding(
            loc,
            f"Sample {sample:,} of {dataset.name!r} has {value} in {split.field!r}, which stands "
            "for no part.",
            f"{WHAT_IT_HOLDS} Write one of these for every sample, and register it again.",
            {"/data/split/field": able[0]} if len(able) == 1 else {},
        )


@rule(
    "correctness.split_groups",
    overridable=False,
    stands_on="A sample whose group is not known can be in no part.",
)
def split_groups(case: Case) -> Iterator[Finding]:
    """A split by groups has a field that says the group of each sample."""
    split, dataset = case.spec.data.split, case.dataset
    if isinstance(split, GroupSplit) and split.field not in dataset.groups:
        meant = closest(split.field, dataset.groups)
        there = ", ".join(sorted(dataset.groups)) or "none"
        yield Finding(
            ("data", "split", "field"),
            f"{split.field!r} of {dataset.name!r} does not say which group a sample is of; fields "
            f"that can: {there}.{did_you_mean(meant)}",
            "It has a text or one whole number for each sample, with nothing missing; a dataset "
            "that was inspected by an earlier version has to be registered again.",
            {"/data/split/field": meant} if meant else {},
        )


@rule(
    "learning.parts_ignored",
    severity="warning",
    stands_on="Kapoor & Narayanan, Leakage and the reproducibility crisis, 2023: samples of one "
    "group, such as positions of one game, on both sides of a split make scores look better than "
    "they are.",
)
def parts_ignored(case: Case) -> Iterator[Finding]:
    """A dataset that says which part each sample belongs to is split as it says."""
    data, dataset = case.spec.data, case.dataset
    if not isinstance(data.split, ChronologicalSplit | RandomSplit):
        return
    for name in NAMES_OF_PARTS:
        field = dataset.fields.get(name)
        if field is None or field.parts is None or name in (*data.inputs, *data.targets):
            continue
        training, validation, test = field.parts.sizes
        if not training or not validation + test:
            continue
        yield Finding(
            ("data", "split", "method"),
            f"The field {name!r} of {dataset.name!r} puts {training:,} samples into training, "
            f"{validation:,} into validation and {test:,} into test, and the split is "
            f"{data.split.method}.",
            f"Of the {validation + test:,} samples that it holds out, some would be trained on: "
            "those of one group, such as a game or a patient, would then be on both sides.",
            {"/data/split": {"method": "field", "field": name}},
        )
        return


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
    if isinstance(spec.data.split, FieldSplit):
        yield from _between_neighbours(case, spec.data.split)
    if isinstance(spec.data.split, GroupSplit):
        yield from _between_groups(case, spec.data.split)
    if not isinstance(spec.data.split, RandomSplit):
        return
    dataset = case.dataset
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    for _, name, array in named_fields(dataset, spec.data.inputs):
        if name in moved_on:
            steps, by = array.shape[0], moved_on[name]
            yield Finding(
                ("data", "split", "method"),
                f"{name!r} holds windows of one series, each shifted by {by} "
                f"{'step' if by == 1 else 'steps'}, but the split is random.",
                f"Nearly every validation window then shares {steps - by} of its {steps} steps "
                "with a training window: the model would be scored on data it has already seen.",
                _cut_by("chronological", spec.data.split),
            )


def _cut_by(method: str, split: ChronologicalSplit | RandomSplit) -> dict[str, Any]:
    """The method; or the block as a whole if it has a seed, which only a random split may have."""
    if not getattr(split, "seed", 0):
        return {"/data/split/method": method}
    names = ("validation_fraction", "test_fraction")
    asked = {name: getattr(split, name) for name in names if name in split.model_fields_set}
    return {"/data/split": {"method": method, **asked}}


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


def _between_neighbours(case: Case, split: FieldSplit) -> Iterator[Finding]:
    """The user has said where each window belongs, and may have a reason: a warning."""
    neighbours = neighbours_sharing_steps(case.spec, case.dataset)
    if not neighbours:
        return
    changes = case.field_parts.changes
    told = set(changes) - breaks_of_all(case.spec.data, case.dataset) if changes else changes
    if told is None or told:
        where = "more than 1,000" if told is None else f"{len(told):,}"
        yield Finding(
            ("data", "split", "field"),
            f"At {where} samples {split.field!r} is another than at the one before, and both are "
            "windows that share steps of one series.",
            f"Each window shares steps with {neighbours:,} behind it, also where these are of "
            "another part: a model may know a part of the answers. Leave so many out of the file "
            "at each of these places.",
            severity="warning",
        )


def _between_groups(case: Case, split: GroupSplit) -> Iterator[Finding]:
    """Neighbours of two groups, of which one is trained on: a warning, as between two parts."""
    neighbours = neighbours_sharing_steps(case.spec, case.dataset)
    sizes, changes = case.sizes, case.dataset.group_changes
    held_out = sizes.validation + sizes.test
    if not neighbours or not held_out or not sizes.training:
        return
    if split.field not in changes:
        raise UnknownFact(f"where {split.field!r} changes in {case.dataset.name}")
    begins, shared = changes[split.field], 0
    if begins is not None:
        breaks = breaks_of_all(case.spec.data, case.dataset)
        series = stretches_of_groups(split, begins, breaks, case.samples)
        shared = held_out_beside_training(series, neighbours)
    if begins is None or shared:
        many = f"{shared:,} of {held_out:,}" if shared else f"Some of {held_out:,}"
        yield Finding(
            ("data", "split", "field"),
            f"{many} samples that are held out share steps of a series with training samples.",
            f"They are windows, of which each shares steps with {neighbours:,} behind it, and "
            f"{split.field!r} puts neighbours into different parts: a model may know a part of the "
            "answers. Let a group be a whole series, or leave so many windows out of the file "
            "where a group ends.",
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
    name = case.sorted_target
    if name is not None:
        yield Finding(
            ("data", "split", "method"),
            f"The file is sorted by {name!r}, and the split cuts it in its order.",
            "The last targets would be in the validation part alone: the score would tell how well "
            "the model does on what it never saw.",
            _cut_by("random", split),
        )


@rule(
    "correctness.empty_part",
    overridable=False,
    stands_on="A part of no sample has no score; the share was asked for in vain.",
)
def empty_part(case: Case) -> Iterator[Finding]:
    """A validation or test part that is asked for has at least one sample."""
    sizes = case.sizes
    for name in ("validation", "test"):
        fraction = getattr(case.spec.data.split, f"{name}_fraction", 0.0)
        if fraction > 0 and getattr(sizes, name) == 0:
            yield Finding(
                ("data", "split", f"{name}_fraction"),
                f"{fraction:g} of {sum(sizes)} samples is none, so the {name} part is empty."
                if not isinstance(case.spec.data.split, GroupSplit)
                else f"No group falls into the {name} part, which {fraction:.0%} of them are for.",
                "There would be nothing to measure on.",
                {f"/data/split/{name}_fraction": 0.0},
            )


@rule(
    "learning.small_part",
    severity="warning",
    stands_on="The standard error of a mean falls with the square root of the samples.",
)
def small_part(case: Case) -> Iterator[Finding]:
    """What is evaluated has at least as many samples as a batch, or 400."""
    sizes, wanted = case.sizes, case.enough_samples
    looked = case.evaluated_samples
    if 0 < looked < min(wanted, sizes.validation):
        yield Finding(
            ("evaluation", "max_batches"),
            f"An evaluation looks at {looked:,} of {sizes.validation:,} samples, fewer than "
            f"{wanted:,}.",
            _by_chance(looked),
            {"/evaluation/max_batches": math.ceil(wanted / case.evaluation_batch)},
        )
    if wanted > sum(sizes) * LARGEST_HELD_OUT:
        return  # of such a dataset no part can have as many
    for name in ("validation", "test"):
        samples = getattr(sizes, name)
        if not 0 < samples < wanted:
            continue
        field = f"{name}_fraction"
        enough = math.ceil(wanted / sum(sizes) * 1_000) / 1_000
        yield Finding(
            ("data", "split", field) if hasattr(case.spec.data.split, field) else ("data", "split"),
            f"The {name} part has {samples:,} samples, fewer than {wanted:,}.",
            _by_chance(samples),
            {f"/data/split/{field}": enough} if hasattr(case.spec.data.split, field) else {},
        )


@rule(
    "learning.class_lacking",
    severity="warning",
    stands_on="Recall of a class without samples is 0/0, and a class that was never trained on is "
    "not learned.",
)
def class_lacking(case: Case) -> Iterator[Finding]:
    """Each part of a split in the order of the file, or by datasets, has samples of every class."""
    if "class_weights" not in case.spec.recipe.takes_weights:
        return
    for target in case.spec.data.targets:
        split = case.spec.data.split
        if isinstance(split, ChronologicalSplit):
            yield from _lacking_in_order(case, split, target)
        elif isinstance(split, DatasetsSplit):
            yield from _lacking_in_datasets(case, target)


def _lacking_in_order(case: Case, split: ChronologicalSplit, target: str) -> Iterator[Finding]:
    classes = case.classes_in(case.dataset, target)
    names: list[tuple[str, Loc]] = [
        (name, ("data", "split", field)) for name, field in PLACES_OF_PARTS.items()
    ]
    for (name, loc), rows in zip(names, part_ranges(split, case.samples), strict=True):
        lacking = [one.label for one in classes if rows and one.is_absent_from(rows)]
        if lacking:
            yield _lacks(name, loc, lacking, target, _cut_by("random", split))


def _lacking_in_datasets(case: Case, target: str) -> Iterator[Finding]:
    by_name = {
        name: {one.label for one in case.classes_in(case.inspected(name), target) if one.samples}
        for _, name in case.named_datasets
    }
    every = set().union(*by_name.values())
    for part, (loc, name) in zip(PLACES_OF_PARTS, case.named_datasets, strict=False):
        # None of a dataset whose labels are too many to be told apart.
        if by_name[name] and (lacking := sorted(every - by_name[name])):
            yield _lacks(part, loc, lacking, target, {})


def _lacks(part: str, loc: Loc, labels: list[int], target: str, fix: Mapping[str, Any]) -> Finding:
    return Finding(
        loc,
        lacking_sentence(part, labels, target),
        "The model cannot learn a class that it is never shown. Draw the parts at random, or mix "
        "the classes in the file."
        if part == "training"
        else "Its scores say nothing of this class, and a mean over classes leaves it out. Draw "
        "the parts at random, or add samples of it.",
        fix,
    )


def _by_chance(samples: int) -> str:
    return (
        f"A score over {samples:,} {'sample' if samples == 1 else 'samples'} is off by about "
        f"{share(samples**-0.5)} of their spread by chance alone; checkpoints that are closer than "
        "that cannot be told apart."
    )


@rule(
    "learning.weights_saw_held_out",
    stands_on="Kapoor & Narayanan, Leakage and the reproducibility crisis, 2023. Measured: a run "
    "scored a val_mae of 0.508 with weights that had trained on 80 % of its validation part, and "
    "0.794 from scratch.",
)
def weights_saw_held_out(case: Case) -> Iterator[Finding]:
    """The weights that a run begins with were not trained on its validation and test samples."""
    seen: list[tuple[bool, float, int, Data]] = []
    unknown: list[UnknownFact] = []
    for ancestor in case.facts.ancestors:
        try:
            part = _share_seen(case, ancestor)
        except UnknownFact as fact:
            unknown.append(fact)
            continue
        if part and ancestor.spec is not None:
            data = ancestor.spec.data
            knows = not {*data.inputs, *data.targets}.isdisjoint(case.spec.data.targets)
            seen.append((knows, part, ancestor.run_id, data))
    if not seen:
        if unknown:
            raise unknown[0]
        return
    knows, part, run_id, data = max(seen, key=lambda one: one[:2])
    is_child = case.facts.parent is not None
    fix = {"/data/split": data.split.model_dump(mode="json")}
    answers = (
        "The model has seen their targets, so its scores would look better than they are."
        if knows
        else "It has not seen their targets, so the scores are only a little too good."
    )
    yield Finding(
        ("data", "split"),
        f"This run begins with weights that were trained on {share(part)} of the samples that it "
        f"holds out: run {run_id} trained on them.",
        f"{answers} Take the split of run {run_id}, or begin with new weights.",
        fix if data.dataset == case.spec.data.dataset else {},
        other_fix={"/from": "scratch"} if is_child else {"/init_from": None},
        severity=None if knows else "warning",
    )


def _share_seen(case: Case, ancestor: AncestorFacts) -> float:
    """Returns the share, 0 to 1, of the held-out samples that the ancestor trained on."""
    held_out = case.sizes.validation + case.sizes.test
    if not held_out:
        return 0.0
    spec = known(ancestor.spec, f"which samples run {ancestor.run_id} was trained on")
    name, asked = spec.data.dataset, f"whether run {ancestor.run_id} trained on held-out samples"
    if name not in {one for _, one in case.named_datasets}:
        raise UnknownFact(f"{asked}: its dataset was another, {name}")
    if name in ancestor.other_data:
        raise UnknownFact(f"{asked}: the file of {name} is another by now")
    dataset = case.inspected(name)
    return samples_trained_on(spec.data, case.spec.data, dataset) / held_out
