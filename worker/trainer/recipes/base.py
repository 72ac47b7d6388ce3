"""What every recipe gives the training loop."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import Dataset

from app.lifecycle import Reason
from app.spec.run import RunSpec
from worker.trainer.data.batch import Batch
from worker.trainer.data.feed.samples import Samples
from worker.trainer.data.source import Field, arrays_of, fields_of, lengths_of
from worker.trainer.data.tensors import made_up
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import SpecMismatch, TrainerError
from worker.trainer.recipes.budget import Budget

# What a recipe imports.
__all__ = [
    "Batch",
    "Begin",
    "Exported",
    "PastOfTarget",
    "Predictor",
    "Samples",
    "Statistics",
    "Tables",
    "Task",
    "TrainingData",
    "TrainingSamples",
    "WeightedLoss",
]

Statistics = Mapping[str, tuple[Tensor, Tensor]]
Tables = Mapping[str, Tensor]
Begin = Literal["epoch", "evaluation"]


def first_once_more(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns inputs of (batch, …) with their first sample once more behind the last one."""
    return {name: torch.cat([one, one[:1]]) for name, one in inputs.items()}


@dataclass(frozen=True)
class Exported:
    """What the forward of an exported model takes, by name and in its order, (batch, …) each; and
    the names of the tensors that it gives, which have the batch first too.
    """

    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...] = ("output",)
    axes: Mapping[str, str] = field(default_factory=dict)
    """Names of the first axis, by input or output, where it is not the batch."""
    more: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = first_once_more
    """Puts samples that are there once more behind the last one. The file has to answer these as it
    did before, or it is of one size alone. Graphs give another one.
    """


class PastOfTarget(NamedTuple):
    """The input that holds the target's own past, with the last step at its end."""

    input: str
    feature: int
    """Which of the input's features it is."""
    step_seconds: float | None = None
    """From one step to the next; None where the file does not say so."""


Predictor = nn.Module
"""Called as the model is, with answers of the same shape and meaning."""


@dataclass(frozen=True)
class TrainingSamples:
    """Samples of the training part on the CPU, in the file's order: at most 100,000 and 64 MiB, in
    stretches that are spaced over the part. Closed forms are fitted on them.
    """

    batch: Batch
    past: PastOfTarget | None
    """None where the file does not say which input holds the target's past."""
    past_features: Mapping[int, int] = field(default_factory=dict)
    """Features of a panel, the first input, that are the target's own past in its units: the index
    of each by the number of dates that it looks back over. Empty where the file does not say so.
    """
    budget: Budget = field(default_factory=Budget)
    """The time for baselines. `worker.trainer.recipes.fitting.can_fit` asks it before each fit."""


@dataclass(frozen=True)
class WeightedLoss:
    """A batch's loss where its samples do not weigh the same, because of a mask or class weights.

    A step divides the sums of all its batches by their weight, so that the loss and its gradient
    are those of one batch, however the step is cut.
    """

    sums: Mapping[str, Tensor]
    """Each loss term as its sum over the batch: float32 scalars on the device."""
    weight: Tensor
    """A scalar that the sums are divided by, the same for all terms: the number of known labels, or
    the sum of the samples' class weights. It follows from the batch, not from the model's answer.
    0 where nothing in the batch counts.
    """

    def means(self) -> dict[str, Tensor]:
        """Each term of this batch alone; 0 where nothing counts."""
        weight = self.weight + (self.weight == 0)
        return {name: one / weight for name, one in self.sums.items()}


@contextmanager
def untouched(task: "Task", model: nn.Module) -> Iterator[None]:
    """Afterwards the task's state, and what it carries from batch to batch, are what they were."""
    before = {name: value.detach().cpu().clone() for name, value in task.state_dict().items()}
    carried = {name: value.detach().clone() for name, value in task.carried(model).items()}
    try:
        yield
    finally:
        if before:
            task.load_state_dict(before)
        put_back(task, model, carried)


def put_back(task: "Task", model: nn.Module, carried: Mapping[str, Tensor]) -> None:
    """Write in place what `carried` gave before; a captured step goes on to read it there."""
    with torch.no_grad():
        for name, tensor in task.carried(model).items():
            tensor.copy_(carried[name])


def grouped_parameters(task: "Task", model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters of each group that has some, in the order in which the recipe declares them.

    Raises TrainerError unless each parameter is in one group, and each group is a declared one.
    """
    declared, given = task.recipe.parameter_groups, task.parameter_groups(model)
    if unknown := sorted(set(given) - set(declared)):
        raise _badly_grouped(
            f"{', '.join(unknown)} is no group of Recipe.parameter_groups ({', '.join(declared)})"
        )
    groups = {name: list(given[name]) for name in declared if name in given}
    counted = Counter(parameter for group in groups.values() for parameter in group)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter in {**names, **counted}:
        if counted[parameter] != 1 or parameter not in names:
            name = names.get(parameter, "a tensor that is no parameter of the model")
            raise _badly_grouped(f"{name} is in {counted[parameter]} of its groups")
    return {name: group for name, group in groups.items() if group}


# A layer that scales, or looks vectors up; none of its parameters is a matrix that mixes inputs.
SCALES_OR_LOOKS_UP = (
    nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase, nn.Embedding, nn.EmbeddingBag
)  # fmt: skip


def undecayed_parameters(model: nn.Module) -> set[nn.Parameter]:
    """The parameters that weight decay leaves out under `optimizer.decay: matrices`.

    These are biases and all others of fewer than two dimensions, those of norms and embeddings, and
    those that a module names in an attribute `undecayed`, such as positions. A parameter that
    several modules share is left out if one of them leaves it out.

    Raises TrainerError if `undecayed` names something that is no parameter of the module.
    """
    parameters = {one for one in model.parameters() if one.ndim < 2}
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, SCALES_OR_LOOKS_UP):
            parameters.update(own.values())
        for name in getattr(module, "undecayed", ()):
            if name not in own:
                raise TrainerError(
                    Reason.trainer_error,
                    f"{type(module).__name__}.undecayed names {name!r}, which is no parameter of "
                    f"the module (it has {', '.join(own) or 'none'}), so weight decay cannot leave "
                    "it out. Mend the recipe's package.",
                )
            parameters.add(own[name])
    return parameters


def _badly_grouped(what: str) -> TrainerError:
    return TrainerError(
        Reason.trainer_error,
        f"Task.parameter_groups of the recipe does not part the model: {what}. Every parameter has "
        "to be in exactly one of the groups that the recipe declares; mend the recipe's package.",
    )


class Task(ABC):
    """A recipe bound to one run's spec and fields: the half that knows PyTorch.

    The other half, its parameters, is `spec.recipe` (`app.spec.recipe.Recipe`); the entry point in
    `stoker.tasks` has the same name as that in `stoker.recipes`.
    """

    data_buffers: ClassVar[tuple[str, ...]] = ()
    """Buffers of the model that describe the run's data, such as means to standardize by: a restart
    that carries weights keeps those of its own data, and carries all others.
    """

    shape_parameters: ClassVar[tuple[str, ...]] = ()
    """Of `parameters_json`, what follows from the arrays and without which weights of the same
    names and shapes would mean something else: no checkpoint with others is gone on from, nor one
    with other `shape_fields` of the recipe.
    """

    prepared_by: ClassVar[tuple[str, ...]] = ()
    """The fields of the recipe that change what `prepare` gives. Dataset, inputs, targets, split
    and the recipe's version are known to do so.
    """

    def __init__(self, spec: RunSpec, fields: Mapping[str, Field]) -> None:
        self.spec = spec
        self.recipe = spec.recipe
        self.fields = fields

    @classmethod
    def for_run(cls, spec: RunSpec, fields: Mapping[str, Field]) -> Self:
        """Raises SpecMismatch when the recipe cannot work with these fields."""
        recipe = spec.recipe
        ragged = {name for name in fields if lengths_of(name) in fields}
        for part in ("inputs", "targets"):
            for name in (one for one in getattr(spec.data, part) if one in fields):
                if name in ragged and part not in recipe.takes_ragged:
                    raise SpecMismatch(
                        f"{name!r} is ragged: its samples have up to {fields[name].shape[0]:,} "
                        f"values, and as one of its {part} the recipe {recipe.kind} takes arrays "
                        "whose samples all have one shape. Pad or cut them to one length "
                        f"(`stoker data convert FILE --pad {fields[name].shape[0]}`), register the "
                        "new file and name it in data.dataset."
                    )
                if fields[name].rows is not None and part not in recipe.takes_packed:
                    raise SpecMismatch(
                        f"{name!r} is packed: its samples are graphs, and the recipe {recipe.kind} "
                        f"takes none as one of its {part}. Name another array, or train with a "
                        "recipe that passes messages along edges."
                    )
        arrays = arrays_of(fields)
        for problem in chain(spec.recipe_problems(arrays), spec.weight_problems()):
            raise SpecMismatch(f"{problem.message} {problem.why}")
        made = recipe.dataset_arrays(spec.data, arrays)
        return cls(spec, fields if made is None else fields_of(made))

    @classmethod
    def dataset(cls, spec: RunSpec, samples: Samples) -> Dataset[Mapping[str, Any]]:
        """A map-style dataset of what batches are put together from, for a recipe whose
        `dataset_arrays` says what it gives: as many samples as `samples`, those of the registered
        dataset, each a mapping of arrays or numbers by name. It may have `__getitems__`
        too, which gives one for each number.

        Loader processes get a copy each, so it has to be picklable. What it gives of a number has
        to be the same each time: an interrupted run could not go on as before otherwise.
        """
        raise TrainerError(
            Reason.trainer_error,
            f"The recipe {spec.recipe.kind} declares dataset_arrays, and its task has no "
            "Task.dataset that gives them. Mend the recipe's package.",
        )

    @property
    @abstractmethod
    def standardized(self) -> tuple[str, ...]:
        """The fields whose statistics `build_model` wants."""

    @property
    def is_fitted(self) -> bool:
        """True if `fit` does something, so that samples are read for it."""
        return type(self).fit is not Task.fit

    def fit(self, model: nn.Module, samples: TrainingSamples) -> None:  # noqa: B027
        """Sets the parameters and buffers of the new `model` that have a closed form, such as those
        of a linear map. Runs on the CPU before the first step, so it should take a second at most.
        """

    def prepare(self, data: TrainingData) -> Tables:
        """Tensors that follow from the data alone, such as graphs and vocabularies: what batches
        and `build_model` need besides. Made once and kept on disk, so the training is the same
        with tables that an earlier run made: give equal ones for equal data and `prepared_by`.
        """
        return {}

    def made_up_tables(self) -> Tables:
        """Tables that nobody prepared, as small as a batch can do with: a probe of memory reads
        none, and what those of the data take is planned beside it (`Recipe.table_bytes`). A recipe
        that prepares some gives them, or cannot be probed.
        """
        if type(self).prepare is Task.prepare:
            return {}
        raise SpecMismatch(
            f"The recipe {self.recipe.kind} prepares tables of the data, which a probe does not "
            "read, and has no made_up_tables in their place. So its memory cannot be probed; train "
            "without the probe."
        )

    @abstractmethod
    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        """A new model on the CPU; its parameters come from torch's global generator. `tables`:
        those of `prepare`, on the CPU.
        """

    @abstractmethod
    def parameters_json(self) -> dict[str, Any]:
        """What is needed to build the same model elsewhere; goes into every manifest."""

    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """The model's parameters by the names of `recipe.parameter_groups`, each in one group; of
        these the optimizer can have learning rates of their own.
        """
        return {self.recipe.parameter_groups[0]: model.parameters()}

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """The parts of the model of which, under `runtime.activation_checkpointing`, only what goes
        in is kept, and all else is computed anew for the gradients: its layers, one after another.
        They compute the same from the same, but for random numbers, which are put back.
        """
        return ()

    def state_dict(self) -> dict[str, Tensor]:
        """What the task has beside the model and a resume must put back, on any device."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state_dict` gave; the tensors are on the CPU, and the task's to keep.

        Raises TrainerError carry_mismatch when it is of a task that keeps something else.
        """
        if state:
            raise TrainerError(
                Reason.carry_mismatch,
                f"The checkpoint has a state of its recipe ({', '.join(sorted(state))}), and the "
                "recipe of this run keeps none. Restart with the weights alone, or from scratch.",
            )

    def made_up(self, size: int, device: torch.device) -> Batch:
        """So many samples that nobody reads, in the shapes and types of the data: what a step is
        compiled, captured and measured with. Ones by default: a recipe for which these are not
        valid, as indices or masks may be, gives others.
        """
        return Batch(made_up(self.fields, size, device), size)

    def carried(self, model: nn.Module) -> Mapping[str, Tensor]:
        """What one batch leaves for the next, such as a recurrent state, on the device.

        Make it buffers of the model (`register_buffer(name, …, persistent=False)`), of one shape
        for the whole run, and write them in place and detached (`copy_`). Checkpoints have it;
        an evaluation begins with its own, and the training goes on with what it had.
        """
        return {}

    def begin(self, kind: Begin, model: nn.Module) -> None:
        """An epoch of the training, or an evaluation, is about to begin, as no batch before it
        can tell. By default what is carried is zeros then.
        """
        for tensor in self.carried(model).values():
            tensor.zero_()

    def begin_lanes(self, model: nn.Module, begins: Tensor) -> None:
        """In the next batch these places, bool (batch,) on the device, begin another series, such
        as that of another station, or one behind a gap: write zeros in place to what they carry.
        """
        raise TrainerError(
            Reason.trainer_error,
            f"The recipe {self.recipe.kind} carries a state from window to window, and its task has"
            " no begin_lanes to end it where the series of this dataset break. Mend the recipe's "
            "package.",
        )

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """Simple predictors by a name for people, fitted on `samples`: the mean, the last value, a
        regression in closed form. `measure` is called with each in the model's place, so they
        answer in the model's units; `model` has the buffers that say them. None by default.

        Put the simplest ones first. Ask `can_fit` before each fit that may take a second.
        """
        return {}

    def baseline_facts(self) -> Mapping[str, Any]:
        """Returns as JSON what `baselines` and their scores depend on, besides the data, its split,
        standardization, metrics and weights. Scores are kept by it for the next run. By default
        these are all fields of the recipe, and the seed.
        """
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "seed": self.spec.training.seed,
        }

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor] | WeightedLoss:
        """Each of the recipe's `loss_terms` as its mean over the batch's samples: float32 scalars
        on the device. Their sum, weighted by the spec's `loss_weights`, is what is trained on.
        A mean that is not divided by the number of samples is a `WeightedLoss`.
        """

    @abstractmethod
    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns what `scores` needs, as sums over the batch's samples: float64 on the device.

        They are added up over all batches of a part, so that each sample weighs the same. A sum is
        a scalar, or a tensor whose shape is the same for every batch, such as the class counts of
        `worker.trainer.recipes.auc`.
        """

    def exported(self, batch: Batch) -> Exported:
        """How the model is called elsewhere (`stoker export`): with these arrays of a batch, or
        what is made of them, as `measure` calls it, once a batch. By default with all that are no
        targets, in the order of `data.inputs`, and lengths of ragged ones behind them.

        Raises SpecMismatch where samples are packed: their arrays have no axis for the batch, so a
        recipe that takes them gives `Exported.axes` and `Exported.more`.
        """
        if any(field.rows is not None for field in self.fields.values()):
            raise SpecMismatch(
                f"The recipe {self.recipe.kind} trains on graphs of different sizes, and does not "
                "say how these are exported as ONNX or int8 (Task.exported). Export it with "
                "--format safetensors."
            )
        inputs, targets = self.spec.data.inputs, self.spec.data.targets
        known = {*targets, *map(lengths_of, targets)}
        named = [name for name in inputs if name in batch.arrays]
        others = [name for name in batch.arrays if name not in {*named, *known}]
        return Exported({name: batch.arrays[name] for name in (*named, *others)})

    @abstractmethod
    def scores(self, sums: Mapping[str, Any], samples: int) -> dict[str, float]:
        """`loss` and the metrics of the spec, from the sums of `measure` over a whole part: a float
        for each scalar, a float64 tensor on the CPU for each other one.

        Raises `worker.trainer.errors.NothingToScore` where the part has nothing that they could be
        of, such as masked targets alone.
        """
