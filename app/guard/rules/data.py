"""Rules about the data that a spec names: it is there, fits together, and holds good values."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from app.guard.case import Case, Loc
from app.guard.facts import DatasetFacts, FieldFacts, known
from app.guard.rule import Finding, rule
from app.guard.wording import size
from app.planning.labels import is_constant
from app.samples import sample_with
from app.spec.installed import INSTALLED
from app.spec.issue import pointer
from app.spec.recipe import Recipe
from app.spec.suffixes import dataset_name_of
from app.suggest import closest, did_you_mean

ARRAYS_OF_A_FILE = (
    "data.inputs and data.targets name arrays of the file. Left out, they are those that the file "
    "or the recipe names, or 'features' (samples, time, features) and 'targets' (samples, horizon) "
    "or (samples,). Arrays of text, of single values and of other lengths than the rest are left "
    "out."
)
# Beyond these a network that starts with outputs around 0 and 1 has a long way to go.
LARGEST_STD, SMALLEST_STD, LARGEST_OFFSET = 10.0, 0.1, 10.0
LARGE_WINDOWS_BYTES = 2**30


def _unready(case: Case, state: str) -> Iterator[tuple[Loc, DatasetFacts]]:
    for loc, name in case.named_datasets:
        dataset = case.facts.datasets.get(name)
        if dataset is not None and dataset.state == state:
            yield loc, dataset


@rule(
    "correctness.dataset_not_found",
    overridable=False,
    stands_on="A path in a spec could name any file of the host, so runs read registered data.",
)
def dataset_not_found(case: Case) -> Iterator[Finding]:
    """Every dataset that a run names is registered."""
    for loc, name in case.named_datasets:
        if name in case.facts.datasets:
            continue
        file = case.facts.files.get(name)
        if file and all(one.path != file for one in case.facts.datasets.values()):
            yield Finding(
                loc,
                f"There is no dataset {name!r}, but the file {file} lies in DATA_ROOT.",
                "A run reads a registered dataset: `stoker data register "
                f"{dataset_name_of(PurePosixPath(file))} {shlex.quote(file)}` makes it one.",
            )
            continue
        meant = _registered(name, case.facts.datasets)
        sample = None if meant else sample_with(name)
        yield Finding(
            loc,
            f"There is no dataset {name[:200]!r}.{did_you_mean(meant)}",
            f"It is in a sample: `stoker data sample {sample}` makes it."
            if sample is not None
            else "A run reads a registered dataset. `stoker data ls` shows those there are; POST "
            "/datasets or `stoker data register` adds one.",
            {pointer(loc): meant} if meant is not None else {},
        )


def _registered(given: str, known: Mapping[str, DatasetFacts]) -> str | None:
    """The dataset whose name or file was probably meant, be it by a path."""
    end = PurePosixPath("/", given)
    of_file = [name for name, one in known.items() if one.path and end.match(f"*/{one.path}")]
    if len(of_file) == 1:
        return of_file[0]
    return closest(given, known) or closest(end.stem, known)


@rule(
    "correctness.dataset_invalid",
    overridable=False,
    stands_on="The inspection of the file: what it could not read, a run cannot either.",
)
def dataset_invalid(case: Case) -> Iterator[Finding]:
    """Every dataset that a run names was found good by its inspection."""
    for loc, dataset in _unready(case, "invalid"):
        problems = "; ".join(dataset.problems) or "no field can be read"
        yield Finding(
            loc,
            f"The dataset {dataset.name!r} cannot be trained on: {problems}",
            "The run would fail at its first read; mend the file and register it again.",
        )


@rule(
    "correctness.dataset_not_ready",
    overridable=False,
    stands_on="Until a file is inspected, its arrays are not known.",
)
def dataset_not_ready(case: Case) -> Iterator[Finding]:
    """Every dataset that a run names has been inspected."""
    for loc, dataset in _unready(case, "inspecting"):
        yield Finding(
            loc,
            f"The dataset {dataset.name!r} is still being inspected.",
            "Its arrays are not known yet; try again, or wait with ?wait=60.",
        )


@rule(
    "correctness.dataset_changed",
    overridable=False,
    stands_on="Size and modification time, which the trainer compares first: where they are other "
    "than at the inspection, the run ends as dataset_changed.",
)
def dataset_changed(case: Case) -> Iterator[Finding]:
    """The file of every dataset that a run names is as it was inspected."""
    for loc, dataset in _unready(case, "ready"):
        if dataset.changed:
            what = " and ".join(dataset.changed)
            yield Finding(
                loc,
                f"The file of the dataset {dataset.name!r} has changed since it was registered: "
                f"its {what}.",
                "What is known of its arrays may hold no more, and the run would end at its start. "
                f"Have it inspected again: stoker data register {dataset.name} {dataset.path}.",
            )


def each_array(case: Case) -> Iterator[tuple[Loc, DatasetFacts, str]]:
    """(Location, dataset, array) for each array that is read from each dataset that is ready."""
    for loc, name in case.named_datasets:
        dataset = case.facts.datasets.get(name)
        if dataset is None or dataset.state != "ready":
            continue
        for part in ("inputs", "targets"):
            for position, array in enumerate(getattr(case.spec.data, part)):
                where: Loc = ("data", part, position) if name == case.spec.data.dataset else loc
                yield where, dataset, array


@rule(
    "correctness.unknown_array",
    overridable=False,
    stands_on="The inspection lists the arrays of the file.",
)
def unknown_array(case: Case) -> Iterator[Finding]:
    """Every input and target array is in every dataset of the run."""
    for loc, dataset, array in each_array(case):
        if array in dataset.fields:
            continue
        spare = _spare(case, dataset, loc[1])
        meant = closest(array, spare) or _by_its_shape(case, dataset, loc[1], spare)
        there = ", ".join(sorted(dataset.fields)) or "none"
        in_list = loc[1] in ("inputs", "targets")
        found = next((told for told in dataset.problems if told.startswith(f"{array!r} ")), None)
        yield Finding(
            loc,
            f"The dataset {dataset.name!r} has no array {array!r}; it has {there}."
            + did_you_mean(meant),
            f"Its inspection found: {found}" if found else ARRAYS_OF_A_FILE,
            {f"/data/{loc[1]}": [meant]} if meant is not None and in_list else {},
        )


def _spare(case: Case, dataset: DatasetFacts, place: str | int) -> list[str]:
    """Arrays that are not in use and could be, as an input or as a target."""
    data = case.spec.data
    recipe = case.spec.recipe
    ragged, packed = place in recipe.takes_ragged, place in recipe.takes_packed
    usable = {
        name
        for name, one in dataset.fields.items()
        if one.lengths is None or (packed if one.edges is not None else ragged)
    }
    return sorted(usable.difference(data.inputs, data.targets))


def _by_its_shape(
    case: Case, dataset: DatasetFacts, place: str | int, spare: Sequence[str]
) -> str | None:
    """The one array that can only be what is asked for: the one that is left, or of two that are,
    for one input and one target, the one with more axes as the input.
    """
    data = case.spec.data
    if len(data.inputs) != 1 or len(data.targets) != 1 or place not in ("inputs", "targets"):
        return None
    other = data.targets[0] if place == "inputs" else data.inputs[0]
    if other in dataset.fields:
        return spare[0] if len(spare) == 1 else None
    by_axes = sorted(spare, key=lambda name: len(dataset.fields[name].shape))
    axes = {len(dataset.fields[name].shape) for name in spare}
    if len(spare) != 2 or len(axes) != 2:
        return None
    fewest, most = by_axes
    return most if place == "inputs" else fewest


@rule(
    "correctness.array_mismatch",
    overridable=False,
    stands_on="A model has one input shape, whichever part a batch comes from.",
)
def array_mismatch(case: Case) -> Iterator[Finding]:
    """Training, validation and test datasets have arrays of the same shapes and types."""
    main = case.facts.datasets.get(case.spec.data.dataset)
    for loc, dataset, array in each_array(case):
        found, expected = dataset.fields.get(array), main and main.fields.get(array)
        if not found or not expected or not main:
            continue
        if _kind(expected) != _kind(found):
            yield Finding(
                loc,
                f"{array!r} is {shown(found)} in {dataset.name!r} but {shown(expected)} in "
                f"{main.name!r}.",
                "Training, validation and test must have the same arrays.",
            )


@rule(
    "correctness.array_shape",
    overridable=False,
    stands_on="What the recipe computes, as it declares it for its inputs and targets.",
)
def array_shape(case: Case) -> Iterator[Finding]:
    """The arrays have the shapes and types that the recipe reads."""
    for problem in case.recipe_problems:
        if problem.loc[0] == "data" and problem.loc[1] != "loader":
            yield Finding(problem.loc, problem.message, problem.why, problem.fix)


def _kind(array: FieldFacts) -> tuple[object, ...]:
    """What arrays of one name have in common in all datasets of a run."""
    inner, edges = array.shape[array.is_ragged :], array.edges
    of_edge = None if edges is None else (edges.shape, edges.values_dtype)
    return array.is_ragged, inner, array.dtype, of_edge


def shown(array: FieldFacts, skipped: int = 0) -> str:
    """Without the first so many axes."""
    if array.edges is not None:
        return f"graphs with nodes of {array.dtype} {array.shape}"
    if array.lengths is None or skipped:
        return f"{array.dtype} {array.shape[skipped:]}"
    inner = "".join(f", {size}" for size in array.shape[1:])
    return f"{array.dtype} (up to {array.lengths.longest}{inner})"


@rule(
    "correctness.nonfinite_values",
    overridable=False,
    stands_on="One NaN in a batch makes every weight NaN; the trainer ends such a run.",
)
def nonfinite_values(case: Case) -> Iterator[Finding]:
    """The arrays of the run hold no NaN and no infinity, in any of its datasets. NaN is a label
    that is not known in targets of a recipe that leaves such labels out.
    """
    spec = case.spec
    strict = [part for part in ("inputs", "targets") if part not in spec.recipe.takes_missing]
    for where, named in case.named_datasets:
        dataset = case.inspected(named)
        for part, names in ((part, getattr(spec.data, part)) for part in strict):
            for position, name, array in named_fields(dataset, names):
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


def named_fields(
    dataset: DatasetFacts, names: tuple[str, ...]
) -> Iterator[tuple[int, str, FieldFacts]]:
    for position, name in enumerate(names):
        if name in dataset.fields:
            yield position, name, dataset.fields[name]


@rule(
    "learning.unscaled",
    stands_on="LeCun et al., Efficient BackProp, 1998, section 4.3: inputs and targets of mean 0 "
    "and deviation 1 converge faster.",
)
def unscaled(case: Case) -> Iterator[Finding]:
    """Quantities far from mean 0 and deviation 1 are standardized."""
    data, dataset = case.spec.data, case.dataset
    for part in case.spec.recipe.has_scale:
        names = () if getattr(data.standardize, part) else getattr(data, part)
        for _, name, array in named_fields(dataset, names):
            std = known(array.std, f"the spread of {name!r} in {dataset.name}")
            mean = known(array.mean, f"the mean of {name!r} in {dataset.name}")
            if SMALLEST_STD <= std <= LARGEST_STD and abs(mean) <= LARGEST_OFFSET:
                continue
            yield Finding(
                ("data", "standardize", part),
                f"{name!r} has mean {mean:.4g} and deviation {std:.4g}, and is not standardized.",
                "The network starts with values around 0 and 1 and would spend its first epochs, "
                f"or all of them, on reaching the scale.{_if_none(case.spec.recipe, part)}",
                {f"/data/standardize/{part}": True},
            )


def _if_none(recipe: Recipe, part: str) -> str:
    """How a plugin says that these are no quantities, where it says nothing of them."""
    if not INSTALLED.is_plugin(recipe.kind) or type(recipe).has_scale is not Recipe.has_scale:
        return ""
    others = tuple(one for one in ("inputs", "targets") if one != part)
    return (
        f" If they are no quantities (classes, bits, indices), the recipe's package has to say so: "
        f"`has_scale: ClassVar = {others!r}` in the class {type(recipe).__name__} names those that "
        "are; () where none is."
    )


@rule(
    "correctness.target_is_input",
    overridable=False,
    stands_on="A model that is given the answer learns to copy it.",
)
def target_is_input(case: Case) -> Iterator[Finding]:
    """No array is both input and target, unless the recipe hides what it asks for."""
    if case.spec.recipe.hides_targets:
        return
    for position, name in enumerate(case.spec.data.targets):
        if name in case.spec.data.inputs:
            yield Finding(
                ("data", "targets", position),
                f"{name!r} is both input and target.",
                "The model would be shown what it is to forecast, and its score would be that of "
                "copying. Take it out of data.inputs, or forecast another array.",
            )


@rule(
    "learning.constant_target",
    severity="warning",
    stands_on="The mean of the training part forecasts a target that never varies without error.",
)
def constant_target(case: Case) -> Iterator[Finding]:
    """Every target varies in the rows that the inspection sampled."""
    dataset, data = case.dataset, case.spec.data
    learned = case.spec.recipe.learned_targets(data)
    for position, name, array in named_fields(dataset, data.targets):
        std = known(array.std, f"the spread of {name!r} in {dataset.name}")
        mean = known(array.mean, f"the mean of {name!r} in {dataset.name}")
        if name in learned and is_constant(mean, std):
            yield Finding(
                ("data", "targets", position),
                f"{name!r} is {mean:.6g} in all rows that were sampled, with deviation 0.",
                "Nothing can be learned of a target that never varies: every model has the same "
                "score. Check the column that it was made of, or name another array.",
            )


@rule(
    "memory.expanded_windows",
    severity="warning",
    stands_on="51,779 windows of 360 × 167 float32 that slide over one series are 12.45 GB, the "
    "series 35 MB; `stoker data convert` writes it.",
)
def expanded_windows(case: Case) -> Iterator[Finding]:
    """Windows of one series that come to 1 GiB or more are stored as the series."""
    dataset = case.dataset
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    samples = known(dataset.samples, f"the samples of the dataset {dataset.name}")
    for part in ("inputs", "targets"):
        for position, name in enumerate(getattr(case.spec.data, part)):
            array = dataset.fields.get(name)
            if array is None or name not in moved_on or array.series_steps is not None:
                continue
            length, by = array.shape[0], moved_on[name]
            stored = samples * array.sample_bytes
            series = (samples * by + length - by) * array.sample_bytes // length
            if stored >= LARGE_WINDOWS_BYTES:
                yield Finding(
                    ("data", part, position),
                    f"{name!r} stores {samples:,} windows of {length:,} steps one by one, "
                    f"{size(stored)}, each shifted by {by} {'step' if by == 1 else 'steps'}.",
                    f"The series that they slide over takes about {size(series)}, and the windows "
                    "can be cut out of it on the device, the same to the last bit: `stoker data "
                    "convert` writes it; register that file.",
                )
