"""Panels for tests of their recipe: specs, a made panel in a file, models and batches of it."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, Lab, merged
from worker.trainer.data.source import Field
from worker.trainer.recipes.base import Batch
from worker.trainer.recipes.panel_graph import PanelGraphTask
from worker.trainer.recipes.panel_model import PanelModel
from worker.trainer.tools.panel.panel_cut import Panel, PanelCut, write_panel

DATES, ENTITIES, WINDOW = 90, 6, 12
FIELDS = {
    "features": ((WINDOW, ENTITIES, 2), "float32"),
    "present": ((WINDOW, ENTITIES), "uint8"),
    "date": ((), "int32"),
    "targets": ((ENTITIES, 2), "float32"),
    "known": ((ENTITIES, 2), "uint8"),
}
GRAPH: dict[str, Any] = {"neighbors": 2, "lookback": 30, "rebuild_every": 10}
SPEC: dict[str, Any] = {
    "recipe": {
        "kind": "panel-graph", "encoder": "gru", "hidden_size": 8, "patch": 3, "dropout": 0.1,
        "horizons": [1, 3], "graph": GRAPH, "date_means": True, "highway": 6,
        "top_frequencies": 2,
    },
    "data": {"inputs": ["features", "present", "date"], "targets": ["targets", "known"]},
    "evaluation": {"metrics": ["mae", "rmse", "rank_correlation", "mae_1", "mae_3"]},
}  # fmt: skip
ENCODERS = ("lstm", "gru", "transformer")
MASKS = {"inputs": ["features", "present", "date"], "targets": ["targets", "known"]}


def with_recipe(**recipe: Any) -> dict[str, Any]:
    return {**SPEC, "recipe": merged(SPEC["recipe"], recipe)}


def made_panel(seed: int = 0) -> Panel:
    """Two groups of three, each with a wave of its own; one comes late, one is away for a while."""
    random = np.random.default_rng(seed)
    wave = 3 * np.sin(0.4 * np.arange(DATES)[:, None] + random.uniform(0, 6, 2))
    own = 50 + wave[:, [0, 0, 0, 1, 1, 1]] + 0.3 * random.normal(size=(DATES, ENTITIES))
    values = np.stack([own, random.normal(size=own.shape)], -1)
    values[:40, 1] = values[50:60, 4] = np.nan
    return Panel(86_400 * np.arange(DATES), tuple("abcdef"), ("own", "noise"), values)


@pytest.fixture
def panel(lab: Lab) -> Lab:
    write_panel(lab.data, made_panel(), PanelCut(WINDOW, (1, 3), "own"))
    return lab


def spec_of(patch: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))


def task_for(patch: dict[str, Any], **fields: tuple[tuple[int, ...], str]) -> PanelGraphTask:
    spec = spec_of(patch)
    found = {n: Field(shape, np.dtype(kind)) for n, (shape, kind) in (FIELDS | fields).items()}
    return PanelGraphTask.for_run(spec, found)


def model_of(task: PanelGraphTask) -> PanelModel:
    torch.manual_seed(0)
    model = task.build_model({}, task.made_up_tables()).eval()
    assert isinstance(model, PanelModel)
    return model


def batch_of(task: PanelGraphTask, size: int = 4) -> Batch:
    torch.manual_seed(1)
    arrays = {
        "features": torch.randn(size, WINDOW, ENTITIES, 2),
        "present": torch.ones(size, WINDOW, ENTITIES, dtype=torch.uint8),
        "date": torch.arange(20, 20 + size, dtype=torch.int32),
        "targets": torch.randn(size, ENTITIES, 2),
        "known": torch.ones(size, ENTITIES, 2, dtype=torch.uint8),
    }
    return Batch(arrays, size, task.made_up_tables())
