"""Rules about the data a spec names: what cannot work is refused with the number and a fix."""

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from app.guard.facts import DatasetFacts, Facts, FieldFacts
from app.spec.arithmetic import PartSizes, part_sizes, steps_per_epoch
from app.spec.data import ChronologicalSplit, DatasetsSplit, RandomSplit
from app.spec.issue import Issue, PatchOp
from app.spec.run import RunSpec

Rule = Callable[[RunSpec, Facts], Iterator[Issue]]
Loc = list[str | int]


def _error(code: str, loc: Loc, message: str, why: str, fix: list[PatchOp] | None = None) -> Issue:
    return Issue(code=code, severity="error", loc=loc, message=message, why=why, fix=fix or [])


def named_datasets(spec: RunSpec) -> Iterator[tuple[Loc, str]]:
    """(Location, name) of each dataset that the spec names."""
    yield ["data", "dataset"], spec.data.dataset
    if isinstance(spec.data.split, DatasetsSplit):
        yield ["data", "split", "validation"], spec.data.split.validation
        if spec.data.split.test is not None:
            yield ["data", "split", "test"], spec.data.split.test


def datasets_exist(spec: RunSpec, facts: Facts) -> Iterator[Issue]:
    """Every dataset is registered, and was found good."""
    for loc, name in named_datasets(spec):
        dataset = facts.datasets.get(name)
        if dataset is None:
            close = get_close_matches(name, list(facts.datasets), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            yield _error(
                "dataset_not_found",
                loc,
                f"There is no dataset {name!r}.{hint}",
                "A run reads a registered dataset; register it with POST /datasets or "
                "`stoker data register`.",
                [PatchOp(op="replace", path="/" + "/".join(map(str, loc)), value=close[0])]
                if close
                else [],
            )
        elif dataset.state == "invalid":
            problems = "; ".join(dataset.problems) or "no field can be read"
            yield _error(
                "dataset_invalid",
                loc,
                f"The dataset {name!r} cannot be trained on: {problems}",
                "The run would fail at its first read; mend the file and register it again.",
            )
        elif dataset.state == "inspecting":
            yield _error(
                "dataset_not_ready",
                loc,
                f"The dataset {name!r} is still being inspected.",
                "Its arrays are not known yet; try again, or wait with ?wait=60.",
            )


def arrays_exist(spec: RunSpec, facts: Facts) -> Iterator[Issue]:
    """Every named array is in every dataset, with the same shape and type in each."""
    main = facts.datasets.get(spec.data.dataset)
    for loc, name in named_datasets(spec):
        dataset = facts.datasets.get(name)
        if dataset is None or dataset.state != "ready":
            continue
        for part in ("inputs", "targets"):
            for position, array in enumerate(getattr(spec.data, part)):
                where: Loc = ["data", part, position] if name == spec.data.dataset else loc
                yield from _array_issues(dataset, array, where, main)


def _array_issues(
    dataset: DatasetFacts, array: str, loc: Loc, main: DatasetFacts | None
) -> Iterator[Issue]:
    found = dataset.fields.get(array)
    if found is None:
        close = get_close_matches(array, list(dataset.fields), n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        there = ", ".join(sorted(dataset.fields)) or "none"
        path = f"/{loc[0]}/{loc[1]}"
        yield _error(
            "unknown_array",
            loc,
            f"The dataset {dataset.name!r} has no array {array!r}; it has {there}.{hint}",
            "The run would have nothing to read.",
            [PatchOp(op="add", path=path, value=[close[0]])]
            if close and loc[1] in ("inputs", "targets")
            else [],
        )
        return
    expected = main.fields.get(array) if main is not None else None
    if expected is not None and (expected.shape, expected.dtype) != (found.shape, found.dtype):
        yield _error(
            "array_mismatch",
            loc,
            f"{array!r} is {_shown(found)} in {dataset.name!r} but {_shown(expected)} in "
            f"{main.name if main else ''!r}.",
            "Training, validation and test must have the same arrays.",
        )


def sequence_shapes(spec: RunSpec, facts: Facts) -> Iterator[Issue]:
    """The recipe `sequence` reads (time, features) windows; its targets have a horizon."""
    dataset = facts.datasets.get(spec.data.dataset)
    if dataset is None:
        return
    window = dataset.fields.get(spec.data.inputs[0])
    target = dataset.fields.get(spec.data.targets[0])
    if window is not None and len(window.shape) != 2:
        yield _error(
            "array_shape",
            ["data", "inputs", 0],
            f"{spec.data.inputs[0]!r} has samples of {_shown(window)}; the recipe sequence reads "
            "windows of (time steps, features).",
            "An LSTM steps through time and sees all features of a step at once.",
        )
    elif window is not None and window.shape[0] % spec.recipe.patch:
        steps = window.shape[0]
        best = max(p for p in range(1, spec.recipe.patch + 1) if steps % p == 0)
        yield _error(
            "patch_size",
            ["recipe", "patch"],
            f"A patch of {spec.recipe.patch} does not divide the window of {steps} time steps.",
            f"{steps % spec.recipe.patch} time steps would be left over.",
            [PatchOp(op="add", path="/recipe/patch", value=best)],
        )
    if target is not None and len(target.shape) not in (1, 2):
        yield _error(
            "array_shape",
            ["data", "targets", 0],
            f"{spec.data.targets[0]!r} has samples of {_shown(target)}; the recipe sequence "
            "forecasts (horizon,) or (horizon, values) numbers.",
            "The head gives one number for each step of the horizon and each value.",
        )


def parts_are_not_empty(spec: RunSpec, facts: Facts) -> Iterator[Issue]:
    """There is something to train on, and to validate on where the spec counts on it."""
    sizes = spec_part_sizes(spec, facts)
    if sizes is None:
        return
    for name in ("validation", "test"):
        fraction = getattr(spec.data.split, f"{name}_fraction", 0.0)
        if fraction > 0 and getattr(sizes, name) == 0:
            yield _error(
                "empty_part",
                ["data", "split", f"{name}_fraction"],
                f"{fraction:g} of {sum(sizes)} samples is none, so the {name} part is empty.",
                "There would be nothing to measure on.",
                [PatchOp(op="remove", path=f"/data/split/{name}_fraction")],
            )
    if sizes.training == 0 or steps_per_epoch(spec.training, sizes.training) == 0:
        yield _error(
            "no_training_steps",
            ["training", "batch_size"],
            f"An epoch of {sizes.training} training samples in batches of "
            f"{spec.training.batch_size} has no step.",
            "With drop_last the only, smaller batch is left out.",
            [PatchOp(op="remove", path="/training/drop_last")] if spec.training.drop_last else [],
        )
    if sizes.validation == 0 and spec.early_stopping is not None:
        yield _error(
            "no_validation",
            ["early_stopping"],
            "Early stopping watches a validation metric, but the validation part is empty.",
            f"The split leaves 0 of {sum(sizes)} samples for validation.",
            [PatchOp(op="remove", path="/early_stopping")],
        )


def best_can_be_told(spec: RunSpec, facts: Facts) -> Iterator[Issue]:
    """Without a validation part nothing is best, which is said where best ones were asked for."""
    sizes = spec_part_sizes(spec, facts)
    if sizes is not None and sizes.validation == 0 and spec.checkpoint.keep_best > 0:
        yield Issue(
            code="nothing_is_best",
            severity="warning",
            loc=["checkpoint", "keep_best"],
            message="There is no validation part, so no checkpoint is the best.",
            why=f"0 of {sum(sizes)} samples are held out; only the newest checkpoints are kept.",
        )


def evaluation_happens(spec: RunSpec, _: Facts) -> Iterator[Issue]:
    """What early stopping watches is computed at some time."""
    never = spec.evaluation.every_epochs is None and spec.evaluation.every_steps is None
    if never and spec.early_stopping is not None:
        yield _error(
            "never_evaluated",
            ["evaluation"],
            "Early stopping watches a validation metric, but nothing is ever evaluated.",
            "The run would never end early.",
            [PatchOp(op="add", path="/evaluation/every_epochs", value=1)],
        )


def monitors_exist(spec: RunSpec, _: Facts) -> Iterator[Issue]:
    """A monitored metric is one that the evaluation computes."""
    computed = ["val_loss", *(f"val_{name}" for name in spec.evaluation.metrics)]
    watched = [("checkpoint", spec.checkpoint.monitor)]
    if spec.early_stopping is not None:
        watched.append(("early_stopping", spec.early_stopping.monitor))
    for block, monitor in watched:
        if monitor not in computed:
            yield _error(
                "unknown_monitor",
                [block, "monitor"],
                f"Nobody computes {monitor!r}; the evaluation gives {', '.join(computed)}.",
                "Nothing would ever be best.",
                [PatchOp(op="replace", path=f"/{block}/monitor", value="val_loss")],
            )


def precision_fits_device(spec: RunSpec, facts: Facts) -> Iterator[Issue]:
    """TF32 and fp16 need a GPU."""
    device = facts.best_device(spec.runtime.device)
    on_cpu = spec.runtime.device == "cpu" or (device is not None and device.kind == "cpu")
    if on_cpu and spec.runtime.precision in ("tf32", "fp16-mixed"):
        yield _error(
            "precision_needs_gpu",
            ["runtime", "precision"],
            f"{spec.runtime.precision} needs a CUDA device; this run would be on a CPU.",
            "CPUs have no TF32 units, and PyTorch has no gradient scaling for fp16 there.",
            [PatchOp(op="replace", path="/runtime/precision", value="auto")],
        )


def a_worker_can_run_it(spec: RunSpec, facts: Facts) -> Iterator[Issue]:
    """Somebody is there to claim the run; otherwise it waits, which is said."""
    if facts.best_device(spec.runtime.device) is not None:
        return
    missing = "a CUDA device" if facts.devices else "any device"
    yield Issue(
        code="no_worker",
        severity="warning",
        loc=["runtime", "device"],
        message=f"No worker with {missing} is alive; the run will wait in the queue.",
        why="Workers claim runs that their devices can train; start one with `stoker worker`.",
    )


def accepted_risks_exist(spec: RunSpec, _: Facts) -> Iterator[Issue]:
    """accept_risks names overridable rules; this version has none."""
    for position, code in enumerate(spec.accept_risks):
        yield _error(
            "unknown_risk",
            ["accept_risks", position],
            f"accept_risks names {code!r}, but no overridable rule has this code.",
            "A risk nobody knows cannot be accepted; there is no overridable rule in this version.",
            [PatchOp(op="remove", path=f"/accept_risks/{position}")],
        )


RULES: tuple[Rule, ...] = (
    datasets_exist,
    arrays_exist,
    sequence_shapes,
    parts_are_not_empty,
    best_can_be_told,
    evaluation_happens,
    monitors_exist,
    precision_fits_device,
    a_worker_can_run_it,
    accepted_risks_exist,
)


def spec_part_sizes(spec: RunSpec, facts: Facts) -> PartSizes | None:
    """Samples of each part; None while a dataset's size is unknown."""
    split = spec.data.split
    counts = [
        facts.datasets[n].samples if n in facts.datasets else None for _, n in named_datasets(spec)
    ]
    if None in counts:
        return None
    known = [count for count in counts if count is not None]
    if isinstance(split, ChronologicalSplit | RandomSplit):
        return part_sizes(split, known[0])
    return PartSizes(known[0], known[1], known[2] if len(known) > 2 else 0)


def _shown(array: FieldFacts) -> str:
    return f"{array.dtype} {array.shape}"
