"""RunSpec: everything a run is, in one immutable document."""

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from app.spec.base import Fraction, SpecModel
from app.spec.data import ChunkedLoader, Data
from app.spec.installed import INSTALLED, RECIPES
from app.spec.optimization import (
    AdamW,
    Averaging,
    NoAveraging,
    OneCycle,
    Optimizer,
    Plateau,
    Schedule,
)
from app.spec.recipe import BACKBONE, Array, Mode, Problem, Recipe
from app.spec.runtime import Runtime
from app.spec.training import Checkpointing, EarlyStopping, Evaluation, Policy, Training
from stoker.models.base import Labels, Priority, RunName, Text

if TYPE_CHECKING:
    AnyRecipe = Recipe
elif len(RECIPES) > 1:
    AnyRecipe = Annotated[reduce(or_, RECIPES.values()), Field(discriminator="kind")]
else:
    AnyRecipe = next(iter(RECIPES.values()), Recipe)

RowId = Annotated[int, Field(ge=1, le=2**53)]
# Which codes there are is the guard's to say, with those that are meant.
RiskCode = Annotated[str, StringConstraints(max_length=100)]
# What a worker has to understand to train what a spec says. It rises with each field that a worker
# which passes it over would train something else without; a field that it may pass over leaves it.
# 2: `data.split.gap`. A spec of version 1 has none and is split without, as it was before.
# 3: `loss_weights`, and recipes of packages.
# 4: `data.split.method: field`, `init_from`, `optimizer.backbone_lr`, `runtime.attention`,
# `runtime.activation_checkpointing`, `pos_weight`, `class_weights`,
# `data.split.method: groups`.
# 5: several GPUs of a script, `recipe.launch`.
# 6: `averaging`, `schedule.kind: plateau`, `policy.on_nonfinite: rollback`.
# 7: `data.split.seed`; the fields of `app.spec.stored.completed`.
SPEC_VERSION = 7
TermName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
LabelWeight = Annotated[float, Field(gt=0.0, le=1e6)]
ClassWeights = Annotated[tuple[LabelWeight, ...], Field(min_length=2, max_length=65_536)]
TermWeight = Annotated[float, Field(ge=0.0, le=1e6)]
PRESET_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
PresetName = Annotated[str, StringConstraints(pattern=PRESET_NAME.pattern)]


class _InitFrom(SpecModel):
    prefix: Annotated[str, StringConstraints(max_length=200)] = ""
    """Only parameters whose names begin so, here and there, such as "backbone."; default all."""
    min_matched: Fraction = 0.9
    """Least share of the model's parameters under the prefix that must match; default 0.9."""


class InitFromCheckpoint(_InitFrom):
    """First weights from a checkpoint: of all parameters whose name and shape match."""

    checkpoint: RowId
    """Id of the checkpoint."""


class InitFromRun(_InitFrom):
    """First weights from another run, which is waited for."""

    run: RowId | Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Id of the run, or its name: the newest of that name."""
    which: Literal["best", "latest"] = "best"
    """Which of its checkpoints; best is the newest where none was evaluated. Default best."""


def _kind_of_init_from(value: object) -> str:
    """Its model: a checkpoint is named, or a run is meant."""
    if isinstance(value, SpecModel):
        return type(value).__name__
    named = isinstance(value, dict) and "checkpoint" in value
    return (InitFromCheckpoint if named else InitFromRun).__name__


InitFrom = Annotated[
    Annotated[InitFromCheckpoint, Tag("InitFromCheckpoint")]
    | Annotated[InitFromRun, Tag("InitFromRun")],
    Discriminator(_kind_of_init_from),
]


class RunSpec(SpecModel):
    """A run. Only `recipe` and `data` must be given."""

    name: RunName = ""
    """A name for people; default empty."""
    notes: Text = ""
    """Free text; default empty."""
    labels: Labels = Field(default_factory=dict)
    """Labels; default none."""
    priority: Priority = 0
    """Higher is claimed first, -1000 to 1000; default 0."""
    mode: Literal["train", "probe"] = "train"
    """Train, or run controlled experiments (probe, not available yet); default train."""
    preset: PresetName = "auto"
    """Layer of defaults for a class of hardware; auto picks by the device. Default auto."""
    recipe: AnyRecipe
    """What is trained."""
    data: Data
    """What it is trained on."""
    training: Training = Training()
    """How long and in which batches."""
    early_stopping: EarlyStopping | None = None
    """When to end early; default never."""
    loss_weights: Annotated[dict[TermName, TermWeight], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Factor of each term of the loss, by its name in the recipe; default 1 each."""
    pos_weight: LabelWeight | None = None
    """Factor of labels that are set, in a loss over labels that are or are not; default none."""
    class_weights: ClassWeights | None = None
    """Factor of each class, in order, in a loss over classes; default none."""
    optimizer: Optimizer = AdamW()
    """How weights are updated."""
    schedule: Schedule = OneCycle()
    """How the learning rate moves."""
    averaging: Averaging = NoAveraging()
    """Averaged weights."""
    runtime: Runtime = Runtime()
    """Where and how it computes."""
    evaluation: Evaluation = Evaluation()
    """When the validation part is looked at."""
    checkpoint: Checkpointing = Checkpointing()
    """When the state is saved."""
    policy: Policy = Policy()
    """Retries and limits."""
    init_from: InitFrom | None = None
    """Begin with the weights of another run; default none."""
    accept_risks: Annotated[tuple[RiskCode, ...], Field(max_length=100)] = ()
    """Codes of overridable rules that this run accepts, or a group (speed.*); default none."""

    @model_validator(mode="after")
    def _as_the_recipe_has_it(self) -> Self:
        """Fills in what the request leaves to the recipe: version, scale, metrics, monitors."""
        if not self.recipe.version:
            version = INSTALLED.versions.get(self.recipe.kind, "")
            self.__dict__["recipe"] = self.recipe.model_copy(update={"version": version})
        scale = {
            part: part in self.recipe.has_scale
            for part, wanted in self.data.standardize
            if wanted == "auto"
        }
        standardize = self.data.standardize.model_copy(update=scale)
        self.__dict__["data"] = self.data.model_copy(update={"standardize": standardize})
        natural = self.recipe.natural_metric
        if "metrics" not in self.evaluation.model_fields_set:
            usual = {"metrics": self.recipe.usual_metrics}
            self.__dict__["evaluation"] = self.evaluation.model_copy(update=usual)
        watched = f"val_{natural}" if natural in self.evaluation.metrics else "val_loss"
        for name, block in self.watching().items():
            given = block.model_fields_set
            monitor = block.monitor if "monitor" in given else watched
            mode = block.mode if "mode" in given else self.better_when(monitor)
            update = {"monitor": monitor, "mode": mode}
            self.__dict__[name] = block.model_copy(update=update)
        return self

    def watching(self) -> dict[str, Checkpointing | EarlyStopping | Plateau]:
        """By their names the blocks that compare scores of the validation part."""
        blocks = {
            name: getattr(self, name) for name in ("checkpoint", "early_stopping", "schedule")
        }
        kinds = Checkpointing | EarlyStopping | Plateau
        return {name: block for name, block in blocks.items() if isinstance(block, kinds)}

    def recipe_problems(self, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        """What keeps the recipe from training on these arrays as the spec asks for."""
        yield from self.recipe.problems(self.data, arrays)
        yield from self._loader_problems(arrays)
        groups = self.recipe.parameter_groups
        if self.optimizer.backbone_lr is not None and BACKBONE not in groups:
            yield Problem(
                ("optimizer", "backbone_lr"),
                f"The recipe {self.recipe.kind} has no backbone that could have a rate of its own; "
                f"its parameters are one group each of {', '.join(groups)}.",
                "No weight would be trained at that rate.",
                {"/optimizer/backbone_lr": None},
            )

    def _loader_problems(self, arrays: Mapping[str, Array]) -> Iterator[Problem]:
        loader = self.data.loader
        made = self.recipe.dataset_arrays(self.data, arrays)
        if made is not None and isinstance(loader, ChunkedLoader):
            shuffle = loader.shuffle if loader.shuffle in ("none", "lanes") else "full"
            yield Problem(
                ("data", "loader", "kind"),
                f"The recipe {self.recipe.kind} makes its samples by a dataset of its own, which "
                "the chunked loader cannot ask.",
                "It brings whole blocks of a file to the device; the PyTorch loader asks for one "
                "sample after another.",
                {"/data/loader": {"kind": "dataloader", "shuffle": shuffle}},
            )
        for name, array in (made or {}).items():
            if array.is_ragged:
                yield Problem(
                    ("recipe", "kind"),
                    f"The recipe {self.recipe.kind} declares in dataset_arrays that its samples of "
                    f"{name!r} differ in length, and samples that a recipe makes have one shape.",
                    "They are put together by torch's default_collate, which cannot fill them up. "
                    "Have the recipe's dataset bring each to one length, and declare that.",
                )

    def weight_problems(self) -> Iterator[Problem]:
        """Where labels or classes are weighted that the loss does not have, or not so many."""
        takes = self.recipe.takes_weights
        given = {"pos_weight": self.pos_weight, "class_weights": self.class_weights}
        for name, value in given.items():
            if value is None:
                continue
            count = len(value) if isinstance(value, tuple) else 1
            if name not in takes:
                yield Problem(
                    (name,),
                    f"The loss of the recipe {self.recipe.kind} has no {name} with these "
                    "parameters.",
                    "It would change nothing.",
                    {f"/{name}": None},
                )
            elif takes[name] != count:
                yield Problem(
                    (name,),
                    f"{name} has {count:,} numbers, and the recipe {self.recipe.kind} has "
                    f"{takes[name]:,} classes.",
                    "Each class has one factor, in their order.",
                    {f"/{name}": None},
                )

    def better_when(self, monitor: str) -> Mode:
        """Whether less or more of a monitored metric is better; of losses less is."""
        return self.recipe.metric_modes.get(monitor.removeprefix("val_")) or "min"
