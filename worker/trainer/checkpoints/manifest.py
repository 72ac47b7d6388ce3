"""What a training goes on from that the manifest of a checkpoint says, besides its files.

A manifest may be whole and say nonsense: somebody wrote it anew, or a version of Stoker that wrote
it wrongly. What is checked here no reader has to doubt.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from stoker.manifest import MANIFEST, BadManifest
from worker.trainer.state import TrainState

Count = Annotated[int, Field(ge=0)]


class Scaler(BaseModel):
    """The state of a torch.amp.GradScaler that is in use."""

    model_config = ConfigDict(strict=True)

    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    growth_tracker: int = Field(alias="_growth_tracker")


class Unscaled(BaseModel):
    """The state of one that is not."""

    model_config = ConfigDict(extra="forbid")


class Average(BaseModel):
    """How far the average of the weights has come."""

    model_config = ConfigDict(strict=True, extra="forbid")

    count: Count
    step: Count
    statistics_due: bool


def _names_a_path(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it is no path")
    return text


class TrainingManifest(BaseModel):
    """Facts that are not listed are nobody's who restores. All ints and floats are finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    format: int
    step: Count
    epoch: Count
    state: TrainState
    loss_samples: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    scaler: Scaler | Unscaled
    losses_bytes: Count
    order_version: int
    schedule_version: int
    total_steps: Count
    device_type: str
    precision: Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed"]
    threads: Annotated[int, Field(ge=1)]
    average: Average | None = None
    recipe: dict[str, Any] = {}
    best_folder: Annotated[str, AfterValidator(_names_a_path)] | None = None


def require_facts(document: Mapping[str, Any]) -> None:
    """Raises BadManifest when it lacks what a training goes on from, or has it of another type."""
    try:
        TrainingManifest.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BadManifest(
            f"{MANIFEST} is of no training that could go on: {place}: {first['msg']}"
        ) from error
