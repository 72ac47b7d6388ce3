"""What the benchmarks take of a trainer without a run: its step, a preparation nobody stops."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.spec.run import RunSpec
from worker.reporting import Pulse
from worker.trainer.build import build_step
from worker.trainer.data.source import Field
from worker.trainer.recipes import task_of
from worker.trainer.recipes.base import Tables
from worker.trainer.report.preparing import Preparing
from worker.trainer.step import NO_TABLES, Precision, TrainingStep
from worker.trainer.stop import StopFlag

FIELDS: Mapping[str, Field] = {
    "features": Field((360, 16), np.dtype("float32")),
    "targets": Field((36,), np.dtype("float32")),
}


def spec_of(request: Mapping[str, Any]) -> RunSpec:
    """Returns the spec of a request whose dataset does not name the features of its windows, so
    that no forecast starts from the target's past.
    """
    recipe = request["recipe"]
    if recipe["kind"] == "sequence":
        recipe = {"residual": "none", "highway": 0, **recipe}
    return RunSpec.model_validate_json(json.dumps({**request, "recipe": recipe}))


def step_of(
    spec: RunSpec,
    fields: Mapping[str, Field] = FIELDS,
    device: str = "cpu",
    tables: Tables = NO_TABLES,
) -> TrainingStep:
    """In fp32."""
    task = task_of(spec.recipe.kind).for_run(spec, fields)
    return build_step(spec, task, {}, Precision("fp32", torch.device(device)), tables=tables)


@contextmanager
def unstopped() -> Iterator[Preparing]:
    with tempfile.TemporaryDirectory() as folder:
        yield Preparing(Pulse(Path(folder) / "pulse"), StopFlag())
