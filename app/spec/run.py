"""RunSpec: everything a run is, in one immutable document."""

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from app.spec.base import Fraction, SpecModel
from app.spec.data import Data
from app.spec.optimization import AdamW, Averaging, NoAveraging, OneCycle, Optimizer, Schedule
from app.spec.recipe import Recipe
from app.spec.runtime import Runtime
from app.spec.training import Checkpointing, EarlyStopping, Evaluation, Policy, Training
from stoker.models.base import Labels, Priority, RunName, Text

RowId = Annotated[int, Field(ge=1, le=2**53)]
# Which codes there are is the guard's to say, with those that are meant.
RiskCode = Annotated[str, StringConstraints(max_length=100)]
# What a worker has to understand to train what a spec says. It rises with each field that a worker
# which passes it over would train something else without; a field that it may pass over leaves it.
# 2: `data.split.gap`. A spec of version 1 has none and is split without, as it was before.
SPEC_VERSION = 2
PRESET_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,63}$")
PresetName = Annotated[str, StringConstraints(pattern=PRESET_NAME.pattern)]


class InitFromCheckpoint(SpecModel):
    """Weights from a checkpoint; not available yet."""

    checkpoint: RowId
    """Id of the checkpoint."""
    prefix: str = ""
    """Only parameters under this prefix; default all."""
    min_matched: Fraction = 0.9
    """Least share of parameters that must match; default 0.9."""


class InitFromRun(SpecModel):
    """Weights from another run, which is waited for; not available yet."""

    run: RowId
    """Id of the run."""
    which: Literal["best", "latest"] = "best"
    """Which of its checkpoints; default best."""
    prefix: str = ""
    """Only parameters under this prefix; default all."""
    min_matched: Fraction = 0.9
    """Least share of parameters that must match; default 0.9."""


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
    recipe: Recipe
    """What is trained."""
    data: Data
    """What it is trained on."""
    training: Training = Training()
    """How long and in which batches."""
    early_stopping: EarlyStopping | None = None
    """When to end early; default never."""
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
    init_from: InitFromCheckpoint | InitFromRun | None = None
    """Start from other weights; default none."""
    accept_risks: Annotated[tuple[RiskCode, ...], Field(max_length=100)] = ()
    """Codes of overridable rules that this run accepts, or a group (speed.*); default none."""
