"""Weights made for use elsewhere, weights from elsewhere, and the jobs that do either."""

from typing import Any, Literal

from pydantic import Field

from stoker.models.base import Answer, Body, Labels, RunName, Text, Time
from stoker.states import ExportFormat

Document = dict[str, Any]


class Job(Answer):
    """Work that a worker does on request; it is known for a week after its end."""

    id: int
    kind: str
    state: Literal["queued", "running", "done", "failed"]
    """Queued: no worker has begun; it needs one that has the artifacts."""
    error: str | None
    """Why it failed, and what to do."""
    result: Document | None
    """Once it is done: of an export `{export_id}`, of an import `{run_id, checkpoint_id, left}`."""
    created_at: Time
    finished_at: Time | None
    links: dict[str, str]


class ExportBody(Body):
    format: ExportFormat = Field(
        description="safetensors: the weights alone. onnx: the model, raw inputs to raw outputs. "
        "int8: the same with weights of 8 bits, by ONNX Runtime's dynamic quantization.",
        examples=["onnx"],
    )


class ExportedTensor(Answer):
    """An input or output of an exported model."""

    name: str
    dtype: str
    shape: list[int | str]
    """The first axis is the batch, of any size."""


class MeasuredModel(Answer):
    """A model on the part of the data that the run was evaluated on."""

    model: Literal["pytorch", "onnx", "int8"]
    scores: dict[str, float]
    """The run's loss and metrics."""
    seconds_per_batch: float
    """The median over repetitions on a CPU."""
    max_difference: float | None
    """The largest absolute one from PyTorch's outputs."""
    bytes: int | None
    """Of the model's file."""


class ExportFacts(Answer):
    """What was measured of an export; of safetensors nothing."""

    inputs: list[ExportedTensor] | None = None
    """As the dataset's arrays are: nothing is to be standardized first."""
    outputs: list[ExportedTensor] | None = None
    part: str | None = None
    """Of the data: validation, or where there is none test or training."""
    samples: int | None = None
    """That were measured on."""
    batch_size: int | None = None
    """That was timed."""
    threads: int | None = None
    measured: list[MeasuredModel] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)


class Export(Answer):
    """A checkpoint in another format; its manifest.json says all of it again."""

    id: int
    run_id: int
    checkpoint_id: int
    """Which it was made of; that one may be gone."""
    step: int
    format: ExportFormat
    path: str
    """Folder, relative to the artifact root."""
    bytes: int
    facts: ExportFacts
    state: Literal["saved", "removing"]
    created_at: Time
    links: dict[str, str]


class ImportBody(Body):
    path: str = Field(
        min_length=1,
        max_length=1000,
        description="A state dict as torch.save writes it, or safetensors, relative to DATA_ROOT.",
        examples=["resnet.pt"],
    )
    name: RunName = Field(
        min_length=1, description="Of the run that holds it.", examples=["resnet"]
    )
    notes: Text = ""
    labels: Labels = Field(default_factory=dict)
    key: str | None = Field(
        None,
        max_length=200,
        description="Where in the file the tensors lie, as state_dict, or module/state_dict.",
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        max_length=64,
        description="Beginnings of names, and what stands there instead.",
        examples=[{"module.": ""}],
    )
