"""What follows from a spec and the facts together, for several rules and the memory plan."""

from collections.abc import Iterator
from dataclasses import replace

from app.guard.facts import DatasetFacts, DeviceFacts, Facts, HistoryFacts, UnknownFact, known
from app.guard.rule import Loc
from app.planning.arithmetic import (
    PartSizes,
    evaluation_batch,
    evaluations,
    part_sizes,
    step_of_evaluation,
    steps_per_epoch,
    total_steps,
)
from app.spec.data import ChronologicalSplit, DatasetsSplit, FieldSplit, RandomSplit
from app.spec.run import RunSpec

# A mean over so many samples is off by 5 % of their spread by chance; larger batches ask no more.
ENOUGH_SAMPLES = 400
# Less than this in a whole run is no loss, whatever share it is: trials may look, save and wait.
LEAST_LOSS_SECONDS = 60.0


def named_datasets(spec: RunSpec) -> Iterator[tuple[Loc, str]]:
    """(Location, name) of each dataset that the spec names."""
    yield ("data", "dataset"), spec.data.dataset
    if isinstance(spec.data.split, DatasetsSplit):
        yield ("data", "split", "validation"), spec.data.split.validation
        if spec.data.split.test is not None:
            yield ("data", "split", "test"), spec.data.split.test


def inspected(name: str, facts: Facts) -> DatasetFacts:
    """A dataset by its name; UnknownFact while it is not inspected."""
    dataset = facts.datasets.get(name)
    ready = dataset is not None and dataset.state == "ready"
    return known(dataset if ready else None, f"the arrays of the dataset {name}")


def dataset_of(spec: RunSpec, facts: Facts) -> DatasetFacts:
    """The dataset that is trained on; UnknownFact while it is not inspected."""
    return inspected(spec.data.dataset, facts)


def as_read(spec: RunSpec, facts: Facts) -> DatasetFacts:
    """The dataset that is trained on, its ragged arrays as long as the longest of all datasets of
    the run: a model has one input shape. UnknownFact.
    """
    dataset = dataset_of(spec, facts)
    ragged = {name: array for name, array in dataset.fields.items() if array.lengths is not None}
    if not ragged:
        return dataset
    each = [inspected(name, facts).fields for _, name in named_datasets(spec)]
    for name, array in ragged.items():
        fields = [one[name] for one in each if name in one]
        longest = max(field.shape[0] for field in fields if field.lengths is not None)
        ragged[name] = replace(array, shape=(longest, *array.shape[1:]))
    return replace(dataset, fields={**dataset.fields, **ragged})


def sizes_of(spec: RunSpec, facts: Facts) -> PartSizes:
    """Samples of each part; UnknownFact while a dataset's size is unknown."""
    counts = [
        known(
            facts.datasets[name].samples if name in facts.datasets else None,
            f"the samples of the dataset {name}",
        )
        for _, name in named_datasets(spec)
    ]
    if isinstance(spec.data.split, ChronologicalSplit | RandomSplit):
        return part_sizes(spec.data.split, counts[0])
    if isinstance(spec.data.split, FieldSplit):
        raise UnknownFact(f"which part the field {spec.data.split.field} puts a sample into")
    return PartSizes(counts[0], counts[1], counts[2] if len(counts) > 2 else 0)


def neighbours_sharing_steps(spec: RunSpec, dataset: DatasetFacts) -> int:
    """Samples after one that share steps of their series with it: in windows that slide over it, or
    in what is forecast from them. 0 for samples that are no windows; UnknownFact.
    """
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    shapes = {name: array.shape for name, array in dataset.fields.items() if name in moved_on}
    targets = [dataset.fields[name].shape for name in spec.data.targets if name in dataset.fields]
    horizon = max((shape[0] for shape in targets if shape), default=0)
    spans = {name: shapes[name][0] for name in spec.data.targets if name in shapes}
    spans |= {name: shapes[name][0] + horizon for name in spec.data.inputs if name in shapes}
    return max((-(-span // moved_on[name]) - 1 for name, span in spans.items()), default=0)


def gap_needed(spec: RunSpec, dataset: DatasetFacts) -> int:
    """Samples to leave out at each border of a chronological split, so that no two parts share a
    step of a series: none where a series ends at the border. UnknownFact.
    """
    split, neighbours = spec.data.split, neighbours_sharing_steps(spec, dataset)
    samples = known(dataset.samples, f"the samples of the dataset {dataset.name}")
    assert isinstance(split, ChronologicalSplit)  # noqa: S101 - no other has borders
    breaks = _breaks_of_all(spec, dataset)
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


def _breaks_of_all(spec: RunSpec, dataset: DatasetFacts) -> set[int]:
    """Where another series begins in all inputs that are windows; in the targets only where no
    input is: a few values of a forecast may come again by chance, and hide a break.
    """
    moved_on = known(dataset.window_steps, f"whether windows overlap in {dataset.name}")
    names = [name for name in spec.data.inputs if name in moved_on] or spec.data.targets
    return set.intersection(*(set(dataset.breaks.get(name) or ()) for name in names))


def has_room_for_gap(split: ChronologicalSplit, gap: int, samples: int) -> bool:
    """Whether at least half of what would be trained on without a gap is left beside one."""
    with_gap, without = (
        part_sizes(split.model_copy(update={"gap": size}), samples).training for size in (gap, 0)
    )
    return 2 * with_gap >= without


def steps_of(spec: RunSpec, facts: Facts) -> int:
    """Optimizer steps of the whole run, unless it ends early; UnknownFact."""
    return total_steps(spec.training, sizes_of(spec, facts).training)


def epochs_of(spec: RunSpec, facts: Facts) -> float:
    """Passes over the training part in the whole run, also fewer than its last; UnknownFact."""
    training = sizes_of(spec, facts).training
    return steps_of(spec, facts) / max(1, steps_per_epoch(spec.training, training))


def evaluation_step(spec: RunSpec, facts: Facts, number: int) -> int:
    """After how many steps evaluation `number` (from 1) comes; UnknownFact."""
    training = sizes_of(spec, facts).training
    epoch_steps = steps_per_epoch(spec.training, training)
    steps = total_steps(spec.training, training)
    return step_of_evaluation(spec.evaluation, number, steps, epoch_steps)


def evaluations_of(spec: RunSpec, sizes: PartSizes) -> int:
    """How often the validation part is evaluated, the last time at the end; 0 without one."""
    if not sizes.validation:
        return 0
    steps = total_steps(spec.training, sizes.training)
    return evaluations(spec.evaluation, steps, steps_per_epoch(spec.training, sizes.training))


def evaluated_samples(spec: RunSpec, validation: int) -> int:
    """Samples of one evaluation of a validation part of so many."""
    batch = evaluation_batch(spec.evaluation, spec.training)
    return min(validation, (spec.evaluation.max_batches or validation) * batch)


def enough_samples(spec: RunSpec) -> int:
    """So many give a mean that says something: one batch, or 400 where a batch has more."""
    return min(spec.training.batch_size, ENOUGH_SAMPLES)


def device_of(spec: RunSpec, facts: Facts) -> DeviceFacts:
    """The device that the run would get; UnknownFact while no worker has one."""
    device = facts.best_device(spec.runtime.device, spec.runtime.precision)
    if device is None and spec.runtime.device == "cpu":
        return DeviceFacts("cpu", "cpu")
    return known(device, "the device that will run it")


def history_of(facts: Facts) -> HistoryFacts | None:
    """What like runs did, None where there were none; UnknownFact where nobody looked."""
    if facts.history_looked_for:
        return facts.history
    return known(facts.history, "how fast runs like it are")


def effective_batch(spec: RunSpec) -> int:
    """Samples of one optimizer step."""
    return spec.training.batch_size * spec.training.gradient_accumulation_steps


def precision_of(spec: RunSpec, facts: Facts) -> str:
    """`runtime.precision` with auto settled as the trainer settles it; UnknownFact."""
    if spec.runtime.precision != "auto":
        return spec.runtime.precision
    device = device_of(spec, facts)
    if device.kind == "cpu":
        return "fp32"
    has_bf16 = known(device.bf16, f"the compute capability of {device.name}")
    return "bf16-mixed" if has_bf16 else "fp32"
