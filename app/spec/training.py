"""How long a run trains, when it evaluates, when it saves, when it gives up."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from app.spec.base import BatchSize, Epochs, SpecModel, Steps
from app.spec.recipe import Mode

MetricName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
MONITOR = re.compile(r"^val_[a-z0-9_]{1,64}$")
# What a metric of some part is called elsewhere: eval_loss, val/loss, train_mae.
OTHER_PART = re.compile(r"^(val|valid|validation|eval|test|train)[_/. -]")


def _is_monitor(value: str) -> str:
    if MONITOR.fullmatch(value) is not None:
        return value
    meant = f"val_{OTHER_PART.sub('', value.lower()).replace('-', '_')}"
    raise PydanticCustomError(
        "not_a_monitor",
        "it should be a metric of the validation part, whose name begins with val_",
        {"expected": meant} if MONITOR.fullmatch(meant) else {},
    )


Monitor = Annotated[
    str, AfterValidator(_is_monitor), Field(json_schema_extra={"pattern": MONITOR.pattern})
]

MOST_PATIENCE = 10_000


class Training(SpecModel):
    """The optimization itself."""

    epochs: Epochs = 5
    """Passes over the training part; default 5."""
    max_steps: Steps | None = None
    """End after so many optimizer steps, if that comes first; default none."""
    batch_size: BatchSize = 128
    """Samples of one micro-batch; default 128."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Micro-batches of one optimizer step; default 1."""
    clip_grad_norm: Annotated[float, Field(gt=0.0, le=1e6)] | None = 1.0
    """Largest gradient norm; null for no clipping. Default 1."""
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)] = 0
    """Seed of weights, order and dropout; default 0."""
    drop_last: bool = False
    """Leave out an epoch's last, smaller batch; default false."""
    log_every_steps: Literal["auto"] | Steps = "auto"
    """Optimizer steps between two log points; default auto: 1 to 50, about 200 points."""


class EarlyStopping(SpecModel):
    """End when the monitored metric stops improving."""

    monitor: Monitor = "val_loss"
    """Which metric; default the recipe's own, else val_loss."""
    mode: Mode = "min"
    """Whether less or more is better; default as it is for the metric."""
    patience: Annotated[int, Field(ge=1, le=MOST_PATIENCE)] = 5
    """Evaluations without improvement before the end; default 5."""
    min_delta: Annotated[float, Field(ge=0.0, le=1e12)] = 0.0
    """Smallest change that counts as improvement, in the metric's units; default 0."""


class Evaluation(SpecModel):
    """When and how the validation part is looked at."""

    every_epochs: Epochs | None = 1
    """Evaluate after so many epochs; null for not by epochs. Default 1."""
    every_steps: Steps | None = None
    """Evaluate after so many optimizer steps as well; default none."""
    batch_size: Literal["auto"] | BatchSize = "auto"
    """Samples of an evaluation batch; auto: the training batch size. Default auto."""
    max_batches: Steps | None = None
    """Evaluate only so many batches, evenly spaced over the validation part and the same each time;
    default all."""
    metrics: Annotated[tuple[MetricName, ...], Field(max_length=16)] = ()
    """Metrics beside the loss, of those that the recipe has; default its usual ones."""


class Checkpointing(SpecModel):
    """When the training state is saved and what is kept."""

    every_seconds: Annotated[float, Field(ge=1.0, le=604_800.0)] | None = 300.0
    """Seconds between two checkpoints; null for not by time. Default 300."""
    every_steps: Steps | None = None
    """Optimizer steps between two checkpoints; default none."""
    keep_last: Annotated[int, Field(ge=1, le=1_000)] = 2
    """How many of the newest to keep; default 2."""
    keep_best: Annotated[int, Field(ge=0, le=1_000)] = 1
    """How many of the best to keep, of those written: the best always is; default 1."""
    monitor: Monitor = "val_loss"
    """Which metric decides what is best; default the recipe's own, else val_loss."""
    mode: Mode = "min"
    """Whether less or more is better; default as it is for the metric."""


class Policy(SpecModel):
    """What happens when something goes wrong."""

    max_retries: Annotated[int, Field(ge=0, le=1_000)] = 3
    """New attempts after failures that may pass, in a row without a checkpoint; default 3."""
    on_oom: Literal["fail", "ladder"] = "ladder"
    """Out of memory: fail, or go on with less data, then fewer samples, at once; default ladder."""
    on_nonfinite: Literal["fail", "rollback"] = "fail"
    """A loss or weights that are not finite: fail, or rollback, which goes back to the newest
    checkpoint and on past the data since, three times at most. Default fail."""
    hang_timeout_seconds: Literal["auto"] | Annotated[float, Field(ge=5.0, le=604_800.0)] = "auto"
    """Seconds without progress after which an attempt is ended; auto: 600. Default auto."""
    max_duration_seconds: Annotated[float, Field(ge=1.0, le=31_536_000.0)] | None = None
    """Seconds of training, over all attempts, after which the run ends; default none."""
    preemptible: bool = False
    """May be saved and put back into the queue for a run of higher priority; default false."""
