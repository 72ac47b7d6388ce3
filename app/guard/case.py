"""A case: a complete spec, the facts, and what follows from both, each computed at most once.

Rules, plan, estimate and carry ask the same questions of one spec; the answers lie here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar, overload

from app.guard.facts import (
    ClassFacts,
    DatasetFacts,
    DeviceFacts,
    Facts,
    FieldFacts,
    PartFacts,
    UnknownFact,
    known,
    not_inspected,
)
from app.guard.gap import gap_needed
from app.guard.memory.memory_plan import MemoryPlan, memory_plan
from app.guard.memory.worker_pools import process_values
from app.guard.memory.workload import Workload, need_of
from app.guard.patching import with_values
from app.guard.reads import Reading, amplification, reading_by_batches, reading_by_chunks
from app.planning import arithmetic
from app.planning.arithmetic import PartSizes
from app.planning.pace import Pace
from app.planning.shuffle import (
    Shuffle,
    independent_samples,
    settled_shuffle,
    stored_shuffle,
)
from app.spec.data import (
    ChronologicalSplit,
    ChunkedLoader,
    DataLoaderLoader,
    DatasetsSplit,
    FieldSplit,
    GroupSplit,
    RandomSplit,
)
from app.spec.layers import Document
from app.spec.recipe import Array, Problem
from app.spec.run import RunSpec

Loc = tuple[str | int, ...]
Value = TypeVar("Value")


class BatchWorth(NamedTuple):
    """The samples of an optimizer step, and how many independent ones say as much of a target."""

    samples: int
    independent: float
    target: str

    @property
    def share(self) -> float:
        return self.independent / self.samples


# A mean over so many samples is off by 5 % of their spread by chance; larger batches ask no more.
ENOUGH_SAMPLES = 400


class Derived(Generic[Value]):
    """A property of a case that is computed when it is first asked for.

    What nobody has said is remembered as well: UnknownFact comes again without computing.
    """

    def __init__(self, compute: Callable[["Case"], Value]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, case: None, owner: type) -> "Derived[Value]": ...

    @overload
    def __get__(self, case: "Case", owner: type) -> Value: ...

    def __get__(self, case: "Case | None", owner: type) -> "Derived[Value] | Value":
        """Python asks only while the case's `__dict__` has no such name."""
        if case is None:
            return self
        if self._name in case.missing:
            raise UnknownFact(case.missing[self._name])
        try:
            value = self._compute(case)
        except UnknownFact as unknown:
            case.missing[self._name] = str(unknown)
            raise
        case.__dict__[self._name] = value
        return value


@dataclass(frozen=True, eq=False)
class Case:
    """What is derived raises UnknownFact, time and again, while a fact for it is missing."""

    spec: RunSpec
    facts: Facts
    missing: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """By the name of what could not be derived, the fact that it lacks."""
    _variants: dict[str, "Case"] = field(default_factory=dict, init=False, repr=False)

    def with_values(self, values: Mapping[str, Any]) -> "Case":
        """The case of the spec with other values, under the same facts; see `with_values`."""
        if not values:
            return self
        key = repr(values)
        if key not in self._variants:
            self._variants[key] = Case(with_values(self.spec, values), self.facts)
        return self._variants[key]

    @property
    def read_in_trainer(self) -> "Case":
        """The case of the spec as it is where no process of a loader reads."""
        loader = self.spec.data.loader
        if not isinstance(loader, DataLoaderLoader):
            return self
        return self.with_values(process_values(loader, 0, 1))

    @Derived
    def parent(self) -> "Case | None":
        """That of the run which is restarted, under the same facts."""
        parent = self.facts.parent
        return None if parent is None else Case(parent.spec, self.facts)

    @Derived
    def document(self) -> Document:
        """The spec as JSON."""
        return self.spec.model_dump(mode="json")

    # Data

    @Derived
    def named_datasets(self) -> tuple[tuple[Loc, str], ...]:
        """(Location, name) of each dataset that the spec names."""
        split = self.spec.data.split
        named: list[tuple[Loc, str]] = [(("data", "dataset"), self.spec.data.dataset)]
        if isinstance(split, DatasetsSplit):
            named.append((("data", "split", "validation"), split.validation))
            if split.test is not None:
                named.append((("data", "split", "test"), split.test))
        return tuple(named)

    def inspected(self, name: str) -> DatasetFacts:
        """A dataset by its name; UnknownFact while it is not inspected."""
        dataset = self.facts.datasets.get(name)
        ready = dataset is not None and dataset.state == "ready"
        return known(dataset if ready else None, f"the arrays of the dataset {name}")

    @Derived
    def dataset(self) -> DatasetFacts:
        """The dataset that is trained on, once it is inspected."""
        return self.inspected(self.spec.data.dataset)

    @Derived
    def dataset_as_read(self) -> DatasetFacts:
        """That dataset, its ragged arrays as long as the longest of all datasets of the run: a
        model has one input shape.
        """
        dataset = self.dataset
        ragged = {name: one for name, one in dataset.fields.items() if one.is_ragged}
        if not ragged:
            return dataset
        each = [self.inspected(name).fields for _, name in self.named_datasets]
        for name, array in ragged.items():
            fields = [one[name] for one in each if name in one]
            longest = max(found.shape[0] for found in fields if found.is_ragged)
            ragged[name] = replace(array, shape=(longest, *array.shape[1:]))
        return replace(dataset, fields={**dataset.fields, **ragged})

    @Derived
    def arrays(self) -> Mapping[str, FieldFacts]:
        """Inputs and targets by their names, as they are stored."""
        dataset, data = self.dataset, self.spec.data
        return {
            name: known(dataset.fields.get(name), f"the array {name!r} of {dataset.name}")
            for name in (*data.inputs, *data.targets)
        }

    @Derived
    def samples(self) -> int:
        """Of the dataset that is trained on."""
        return known(self.dataset.samples, f"the samples of the dataset {self.dataset.name}")

    @Derived
    def sizes(self) -> PartSizes:
        """Samples of each part."""
        split, datasets = self.spec.data.split, self.facts.datasets
        found = [(name, datasets.get(name)) for _, name in self.named_datasets]
        what = "the samples of the dataset"
        counts = [known(one.samples if one else None, f"{what} {name}") for name, one in found]
        if isinstance(split, ChronologicalSplit | RandomSplit):
            return arithmetic.part_sizes(split, counts[0])
        if isinstance(split, FieldSplit):
            return self.field_parts.sizes
        if isinstance(split, GroupSplit):
            told = self.dataset.groups.get(split.field)
            return arithmetic.group_sizes(split, known(told, f"the groups of {split.field!r}"))
        return PartSizes(counts[0], counts[1], counts[2] if len(counts) > 2 else 0)

    @Derived
    def field_parts(self) -> PartFacts:
        """What the field says that the samples are split by."""
        split, dataset = self.spec.data.split, self.dataset
        field = dataset.fields.get(split.field) if isinstance(split, FieldSplit) else None
        parts = None if field is None else field.parts
        return known(parts, f"which part each sample of {dataset.name} is in")

    def classes_in(self, dataset: DatasetFacts, target: str) -> Sequence[ClassFacts]:
        """The classes of a target, or none if it has other values; UnknownFact where an earlier
        version inspected the dataset.
        """
        field = known(dataset.fields.get(target), f"the array {target!r} of {dataset.name}")
        if "classes" in field.not_inspected:
            raise not_inspected(dataset)
        return field.classes or ()

    @Derived
    def sorted_target(self) -> str | None:
        """The target that only rises along the file, if there is one."""
        dataset = self.dataset
        for name in self.spec.data.targets:
            array = dataset.fields.get(name)
            if array and known(array.sorted, f"whether {name!r} is sorted in {dataset.name}"):
                return name
        return None

    @Derived
    def gap_needed(self) -> int:
        """Samples to leave out at each border of a chronological split, so that no two parts share
        a step of a series.
        """
        return gap_needed(self.spec, self.dataset)

    @Derived
    def shuffle(self) -> Shuffle:
        """The shuffle of the training part as the trainer reads it from the stored spec.

        The bytes are those of the samples: a file is smaller where it is compressed, and larger
        where it has other arrays.
        """
        samples = self.samples
        sample_bytes = sum(array.kept_bytes for array in self.arrays.values())
        return stored_shuffle(self.spec.data.loader, samples, sample_bytes)

    @Derived
    def settled_order(self) -> Mapping[str, Any]:
        """The values that the loader's `auto` becomes at submission, by JSON Pointer. They follow
        from the data and the memory for it.
        """
        loader = self.spec.data.loader
        if not isinstance(loader, ChunkedLoader):
            return {}
        need = replace(self.workload.need, group_samples=1)
        try:  # the memory for data does not depend on the order
            memory = self.memory.data_memory
        except UnknownFact:
            memory = None
        largest = max(self.arrays.values(), key=lambda array: array.kept_bytes)
        rows = largest.chunk_rows if largest.is_read_whole else None
        network = bool(self.dataset.network)
        batch = self.spec.training.batch_size
        shuffle = settled_shuffle(loader, need, memory, batch, rows or 1, on_network=network)
        values: dict[str, Any] = {"shuffle": shuffle.kind}
        if shuffle.kind == "block":
            values |= {"shuffle_group": shuffle.group, "shuffle_block": shuffle.block}
        return {f"/data/loader/{n}": v for n, v in values.items() if getattr(loader, n) != v}

    @Derived
    def shape(self) -> Document:
        """What gives the model its shape, as the recipe declares it."""
        recipe, arrays = self.spec.recipe, self.recipe_arrays
        for name in (*self.spec.data.inputs, *self.spec.data.targets):
            known(arrays.get(name), f"the array {name!r}")
        return {"recipe": recipe.shape_values(), **recipe.shape(self.spec.data, arrays)}

    @Derived
    def recipe_arrays(self) -> Mapping[str, Array]:
        """The arrays of the dataset as a recipe is told of them."""
        fields = self.dataset_as_read.fields.items()
        return {name: array for field, one in fields for name, array in one.arrays(field).items()}

    @Derived
    def dataset_arrays(self) -> Mapping[str, Array] | None:
        """What a batch has, where the recipe makes samples of its own of the file's."""
        return self.spec.recipe.dataset_arrays(self.spec.data, self.recipe_arrays)

    @Derived
    def recipe_problems(self) -> tuple[Problem, ...]:
        """What keeps the recipe from training on these arrays."""
        return tuple(self.spec.recipe_problems(self.recipe_arrays))

    # Steps

    @Derived
    def epoch_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return arithmetic.steps_per_epoch(self.spec.training, self.sizes.training)

    @Derived
    def steps(self) -> int:
        """Optimizer steps of the whole run, unless it ends early."""
        return arithmetic.total_steps(self.spec.training, self.sizes.training)

    @Derived
    def epochs(self) -> float:
        """Passes over the training part in the whole run, also fewer than its last."""
        return self.steps / max(1, self.epoch_steps)

    @Derived
    def effective_batch(self) -> int:
        """Samples of one optimizer step."""
        training = self.spec.training
        return training.batch_size * training.gradient_accumulation_steps

    @Derived
    def enough_samples(self) -> int:
        """So many give a mean that says something: one batch, or 400 where a batch has more."""
        return min(self.spec.training.batch_size, ENOUGH_SAMPLES)

    @Derived
    def evaluations(self) -> int:
        """How often the validation part is evaluated, the last time at the end; 0 without one."""
        if not self.sizes.validation:
            return 0
        return arithmetic.evaluations(self.spec.evaluation, self.steps, self.epoch_steps)

    @Derived
    def evaluation_batch(self) -> int:
        """Samples of a batch of evaluation."""
        return arithmetic.evaluation_batch(self.spec.evaluation, self.spec.training)

    @Derived
    def evaluated_samples(self) -> int:
        """Samples of one evaluation of the validation part."""
        validation = self.sizes.validation
        most = self.spec.evaluation.max_batches or validation
        return min(validation, most * self.evaluation_batch)

    def step_of_evaluation(self, number: int) -> int:
        """After how many steps evaluation `number` (from 1) comes; UnknownFact."""
        wanted, epoch_steps = self.spec.evaluation, self.epoch_steps
        return arithmetic.step_of_evaluation(wanted, number, self.steps, epoch_steps)

    @Derived
    def batch_worth(self) -> BatchWorth | None:
        """The worth of a step's samples, by the target where they are worth least; None where no
        target varies. UnknownFact where an earlier version inspected the dataset.
        """
        fields, samples = self.dataset.fields, self.sizes.training
        for target in self.spec.data.targets:
            if target in fields and "neighbours" in fields[target].not_inspected:
                raise not_inspected(self.dataset)
        shuffle, batch = self.shuffle, min(self.effective_batch, samples)
        worths = [
            BatchWorth(batch, independent_samples(shuffle, batch, samples, like), target)
            for target in self.spec.data.targets
            if batch and target in fields and (like := fields[target].neighbours) is not None
        ]
        return min(worths, key=lambda worth: worth.independent, default=None)

    # Earlier runs

    @Derived
    def like_runs(self) -> Pace:
        """What like runs did."""
        return known(self.facts.history, "how fast runs like it are")

    @Derived
    def history(self) -> Pace | None:
        """What like runs did, None where there were none; UnknownFact where nobody looked."""
        if self.facts.history_looked_for:
            return self.facts.history
        return self.like_runs

    @Derived
    def training_seconds(self) -> float:
        """What the trainer's clock shows at the last step, as like runs went: steps, and
        evaluations and checkpoints before the end. `max_duration_seconds` limits it.

        Every evaluation may bring a new best checkpoint.
        """
        history, wanted = self.like_runs, self.spec.checkpoint
        trained = self.steps / history.iterations_per_second
        evaluations = max(0, self.evaluations - 1)
        saves = evaluations if wanted.keep_best else 0
        saves += max(0, self.steps - 1) // wanted.every_steps if wanted.every_steps else 0
        saves += int(trained / wanted.every_seconds) if wanted.every_seconds else 0
        return (
            trained
            + evaluations * self.evaluated_samples * (history.evaluation_seconds or 0.0)
            + saves * (history.checkpoint_seconds or 0.0)
        )

    # Device and memory

    @Derived
    def best_device(self) -> DeviceFacts | None:
        """The device that the run would get; None while no worker has one."""
        runtime = self.spec.runtime
        return self.facts.best_device(runtime.device, runtime.precision)

    @Derived
    def device(self) -> DeviceFacts:
        """The device that the run would get; there is a CPU where no worker has told of one."""
        device = self.best_device
        if device is None and self.spec.runtime.device == "cpu":
            return DeviceFacts("cpu", "cpu")
        return known(device, "the device that will run it")

    @Derived
    def precision(self) -> str:
        """`runtime.precision` with auto settled as the trainer settles it."""
        wanted = self.spec.runtime.precision
        return wanted if wanted != "auto" else self.device.settled_precision(wanted)

    @Derived
    def workload(self) -> Workload:
        """What it has to hold and to compute with, whatever the device."""
        dataset = self.dataset_as_read
        sizes = self.sizes._replace(validation=self.evaluated_samples)
        arrays = {name: dataset.fields[name] for name in self.arrays}
        if made := self.dataset_arrays:
            arrays = {name: FieldFacts(one.shape, one.dtype) for name, one in made.items()}
        need = need_of(arrays.values(), sizes, self.shuffle.group)
        tables = 0
        if not self.recipe_problems:
            tables = self.spec.recipe.table_bytes(self.spec.data, self.recipe_arrays, self.samples)
        return Workload(self.spec, arrays, sizes, need, self.parameters, tables)

    @Derived
    def parameters(self) -> int | None:
        """Of the model; None where only building it tells."""
        if self.recipe_problems:
            return None
        return self.spec.recipe.num_parameters(self.spec.data, self.recipe_arrays)

    @Derived
    def memory(self) -> MemoryPlan:
        """What it takes on the device that it would get."""
        device = self.device  # one that is missing is told first
        return memory_plan(self.workload, device, self.facts.profiles)

    @Derived
    def reading(self) -> Reading | None:
        """How it takes its rows from the file; None where the data stays on the device, or where no
        sample is left to train on.
        """
        loader = self.spec.data.loader
        if isinstance(loader, ChunkedLoader) and loader.residency == "resident":
            return None
        plan = self.memory
        if plan.data.kind == "resident" or not plan.need.train_samples:
            return None
        if isinstance(loader, ChunkedLoader):
            return reading_by_chunks(plan, self.shuffle)
        return reading_by_batches(loader, plan.batch, plan.need.train_samples)

    @Derived
    def amplification(self) -> float:
        """How often an epoch reads the file; 1 where the data stays on the device."""
        return amplification(self.reading, self.dataset, self.arrays)
