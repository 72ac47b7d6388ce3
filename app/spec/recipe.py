"""What a recipe is without PyTorch: its parameters, and what they ask of data and of a device.

A recipe has two halves of one kind. This one is a pydantic model that answers for itself; the other
(`worker.trainer.recipes.base.Task`) trains. Both are found by entry point: `stoker.recipes` and
`stoker.tasks`. Nothing else knows a recipe by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from app.spec.base import SpecModel
from app.spec.data import Data

Mode = Literal["min", "max"]
Format = Literal["fp32", "tf32", "bf16", "fp16"]
# The group of parameters that `optimizer.backbone_lr` is for.
BACKBONE = "backbone"
# What products are computed in under each precision, where nothing stands in the way.
FORMATS: dict[str, Format] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16-mixed": "bf16",
    "fp16-mixed": "fp16",
}


@dataclass(frozen=True)
class Array:
    """A named array of a dataset: `shape` and NumPy `dtype` of one sample.

    Of a ragged array, whose samples differ in length, the shape begins with the longest. Of a
    packed one, a part of graphs, it is that of one row: of a node or an edge.
    """

    shape: tuple[int, ...]
    dtype: str
    is_ragged: bool = False
    rows: float | None = None
    """Of a packed array: how many rows a sample has on average; None of others."""
    series_steps: int | None = None
    """Of windows that are kept as the series which they slide over: how many steps that has, as
    far as it is known; None of others."""
    horizons: tuple[int, ...] | None = None
    """Of targets whose file says how many steps ahead each reaches: that; None of others."""
    target_feature: int | None = None
    """Index of the feature of these windows that is the target's own past; None if the file does
    not name one.
    """
    classes: int | None = None
    """The number of classes that the labels of an array number from 0; None if it is not known."""
    names_classes: bool = False
    """True if the file has a name for each class, so that its numbers are no quantities."""


class Roles(NamedTuple):
    """Names of the arrays that a run reads, as `data.inputs` and `data.targets` have them."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Something that does not fit: where in the spec, what, why it matters, and what would mend it.

    `fix` gives values by JSON Pointer.
    """

    loc: tuple[str | int, ...]
    message: str
    why: str
    fix: Mapping[str, Any] = field(default_factory=dict)


class Recipe(SpecModel):
    """The parameters of a recipe. A subclass has `kind: Literal[...]` and its own fields."""

    kind: str
    """Which recipe."""

    version: Annotated[str, Field(max_length=100)] = ""
    """The version that trains; filled in: a package's own, or that of Stoker's recipe."""

    revision: ClassVar[str] = "1"
    """The version of a recipe of Stoker's own. It rises when the recipe computes something else; a
    plugin has its package's version instead.
    """

    shape_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that change the model's parameters or their meaning; of a block `block/field`. By
    this one list a restart is told what it carries, and the trainer compares a checkpoint.
    """

    earlier: ClassVar[Mapping[str, Any]] = {}
    """Values by field that name what this recipe did before the field existed. A stored spec
    without the field means this; give it where today's default means something else.
    """

    takes_ragged: ClassVar[tuple[str, ...]] = ()
    """Which of `inputs` and `targets` may be ragged."""

    takes_packed: ClassVar[tuple[str, ...]] = ()
    """Which of `inputs` and `targets` may be packed graphs."""

    takes_missing: ClassVar[tuple[str, ...]] = ()
    """Which of `inputs` and `targets` may hold NaN, which says that a value is not known. The loss
    and the metrics of the recipe leave such values out, and its task standardizes the others.
    """

    @property
    def has_scale(self) -> tuple[str, ...]:
        """Which of `inputs` and `targets` are quantities, which learn best with mean 0 and
        deviation 1; bits and indices are none.
        """
        return ("inputs", "targets")

    @property
    def metric_modes(self) -> Mapping[str, Mode | None]:
        """Each metric that an evaluation can give beside the loss, and whether less or more is
        better. None: neither is, because the metric has a nominal value. Such a metric cannot be a
        monitor, and is not compared with baselines.
        """
        return {}

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """Returns the metrics of a spec that names none: the first, and the natural one."""
        natural = () if self.natural_metric is None else (self.natural_metric,)
        return tuple(dict.fromkeys((*tuple(self.metric_modes)[:1], *natural)))

    @property
    def natural_metric(self) -> str | None:
        """The metric that says which weights are best, where a spec names no monitor; None: the
        loss. Name one where the loss is not what users of the recipe compare.
        """
        return None

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The terms whose weighted sum is the loss, in order; `loss_weights` names them."""
        return ("loss",)

    @property
    def hides_targets(self) -> bool:
        """Whether it learns to tell parts of its inputs, which it hides from the model: then
        `targets` may name an input.
        """
        return False

    @property
    def takes_weights(self) -> Mapping[str, int]:
        """Which of the spec's `pos_weight` and `class_weights` the loss obeys (`task.spec` has
        them), and how many numbers each has: 1, and as many as there are classes.
        """
        return {}

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        """The names of the parts of the model that may have a learning rate of their own, such as
        `backbone`, which `optimizer.backbone_lr` is for, and `head`.
        """
        return ("model",)

    def roles(self, arrays: Mapping[str, Array]) -> Roles | None:
        """Returns which of the dataset's arrays are inputs and targets, where neither the spec nor
        the file says it; None if these arrays do not tell.
        """
        return None

    def problems(self, data: Data, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """What keeps these parameters from training on these arrays.

        `arrays` has all that are known of the dataset: inputs and targets may be missing, which is
        told elsewhere.
        """
        yield from ()

    def slowdowns(self, data: Data) -> Iterator[Problem]:
        """What these parameters were measured to cost without making a better model: `why` has the
        share of the time, `fix` what saves it. A run may accept it, so it has to work.
        """
        yield from ()

    def forecast_steps(self, data: Data) -> int | None:
        """How many steps behind the end of a window its targets reach; None: as many as a sample of
        the targets has. Of two parts none may know what the other is asked.
        """
        return None

    def dataset_arrays(self, data: Data, arrays: Mapping[str, Array]) -> Mapping[str, Array] | None:
        """What a batch has, where `Task.dataset` makes it of the file's samples: none of it ragged,
        read by the PyTorch loader. None: the inputs and targets of the file as they are.
        """
        return None

    def shape_values(self) -> dict[str, Any]:
        """Of `shape_fields`, as JSON has them."""
        given = self.model_dump(mode="json")
        return {name: value_at(given, name) for name in self.shape_fields}

    def shape(self, data: Data, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """What gives the model its shape besides `shape_fields`: by role and name, the sizes that
        its parameters follow from. A restart that changes one of them cannot carry weights.
        """
        return {
            role: {name: list(arrays[name].shape) for name in getattr(data, role) if name in arrays}
            for role in ("inputs", "targets")
        }

    def num_parameters(self, data: Data, arrays: Mapping[str, Array]) -> int | None:
        """Trainable parameters of the model; None where only building it can tell."""
        return None

    def learned_targets(self, data: Data) -> tuple[str, ...]:
        """Returns the targets that a model learns nothing of if they never vary."""
        return () if self.hides_targets else data.targets

    def table_bytes(self, data: Data, arrays: Mapping[str, Array], samples: int) -> int:
        """Bytes that the tables of `Task.prepare` take, for the memory plan; those that are small
        need not be counted. `samples`: of the dataset that is trained on.
        """
        return 0

    def computes_in(self, precision: str, device_kind: str) -> dict[str, Format]:
        """By part of the model, the number format of its products; `precision` is not auto.

        Weights, their updates and the loss are always fp32.
        """
        return {"model": FORMATS[precision], "weights": "fp32"}

    def uses_attention(self, data: Data) -> bool | None:
        """Whether the model computes `scaled_dot_product_attention`, which `runtime.attention` is
        about; None where the recipe does not say.
        """
        return None

    @property
    def masks_attention(self) -> bool:
        """Whether some of that attention has a mask, which flash kernels of GPUs do not take."""
        return False

    @property
    def has_blocks(self) -> bool:
        """Whether `Task.blocks` names parts of the model whose activations can be computed anew,
        which `runtime.activation_checkpointing` is about.
        """
        return False

    @property
    def has_random_blocks(self) -> bool:
        """True if these blocks draw random numbers while they train, as dropout does. Their
        generator is then restored before they are computed again, which no CUDA graph can capture.
        """
        return True

    @property
    def widths(self) -> Mapping[str, int]:
        """By field, how wide the model's layers are: sizes of its matrices, which tensor cores
        want to be multiples of 8 in half precision.
        """
        return {}

    @property
    def carries_state(self) -> bool:
        """Whether what one batch leaves is taken up by the next, each sample by that in its place:
        then batches are in lanes, and whole.
        """
        return False

    def carried_inputs(self, data: Data) -> tuple[str, ...]:
        """Of these each window goes on where the one before it ended: whose series may break, and
        whose windows must not overlap.
        """
        return data.inputs if self.carries_state else ()

    def carrying(self, inputs: tuple[str, ...]) -> Mapping[str, Any]:
        """The fields, with values, by which it would carry the state of these inputs alone; empty
        where that cannot be asked for.
        """
        return {}

    @property
    def recurrence(self) -> str | None:
        """The recurrent layer that takes most of a step's time (LSTM, GRU), if there is one.

        PyTorch does not compile these, and cuDNN has none in bf16 under autocast.
        """
        return None

    @property
    def not_capturable(self) -> str | None:
        """Why no step can be captured as a CUDA graph, as a sentence; None where one can."""
        return None


def past_of_target(data: Data, arrays: Mapping[str, Array]) -> tuple[str, int] | None:
    """Returns the input whose windows hold the target's own past, and which of their features it
    is; the last step is right before the forecast. None if it is not known.

    Ragged windows are none of these: behind the end of a sample lie zeros.
    """
    target = arrays.get(data.targets[0])
    if target is None or len(target.shape) > 1:
        return None
    for name in data.inputs:
        array = arrays.get(name)
        if array is not None and array.target_feature is not None and not array.is_ragged:
            return name, array.target_feature
    return None


def value_at(parameters: Mapping[str, Any], name: str) -> Any:
    """Of a field, or `block/field`; None where it is not there."""
    at: Any = parameters
    for part in name.split("/"):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at
