"""Molecules for tests of their recipe: specs, chains of atoms in a file, and batches of them."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from app.planning.ladder import NO_RUNG, Rung
from app.spec.run import RunSpec
from tests.trainer.lab import merged
from tests.trainer_data.factories import entry, preparing
from tests.trainer_data.test_packed import graphs_of
from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import open_data
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.data.source import Field
from worker.trainer.recipes.base import WeightedLoss
from worker.trainer.recipes.molecule import MoleculeTask

CPU = torch.device("cpu")
NODES, EDGES = 6.5, 7.5
FIELDS = {
    "molecules": Field((3,), np.dtype("u1"), NODES),
    "molecules/counts": Field((2,), np.dtype("i8")),
    "molecules/samples": Field((), np.dtype("i8"), NODES, "molecules/counts"),
    "molecules/edges": Field((2,), np.dtype("i8"), EDGES, "molecules"),
    "molecules/edge_values": Field((2,), np.dtype("u1"), EDGES),
    "targets": Field((), np.dtype("f4")),
}
TASKS: dict[str, dict[str, Any]] = {
    "masked": {"targets": ["molecules"], "standardize": {"inputs": False, "targets": False}},
    "classification": {"standardize": {"inputs": False, "targets": False}},
    "regression": {"standardize": {"inputs": False}},
}


METRICS = {
    "masked": ["accuracy"],
    "classification": ["accuracy", "balanced_accuracy"],
    "regression": ["mae", "mse", "rmse"],
}


def request_of(task: str, **more: Any) -> dict[str, Any]:
    data = {"dataset": "numbers", "inputs": ["molecules"], **TASKS[task]}
    recipe = {"kind": "molecule", "task": task, "hidden_size": 16, "num_layers": 2}
    return merged({"recipe": recipe, "data": data}, more)


def spec_of(task: str, **more: Any) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps(request_of(task, **more)))


def write(path: Path, count: int = 200, *, classes: bool = False) -> Path:
    """Chains whose number is the share of their atoms that are of the elements 0 to 3; neighbours
    are of one element, but for every tenth.
    """
    random = np.random.default_rng(5)
    graphs = graphs_of(random.integers(2, 10, count))
    for graph in graphs:
        length = len(graph["nodes"])
        elements = np.where(random.random(length) < 0.1, graph["nodes"][:, 0], random.integers(8))
        graph["nodes"] = np.repeat(elements[:, None] % 8, 3, 1).astype(np.uint8)
        ends = np.arange(length - 1)
        graph["edges"] = np.stack([ends, ends + 1], 1).astype(np.uint16)
        graph["edge_values"] = np.ones((length - 1, 2), np.uint8)
    share = np.array([(graph["nodes"][:, 0] < 4).mean() for graph in graphs], np.float32)
    with h5py.File(path, "w") as file:
        write_packed(file, "molecules", graphs)
        file["targets"] = (share > 0.5).astype(np.float32) if classes else 100 * share
    return path


def batch_of(path: Path, spec: RunSpec) -> Batch:
    return batches_of(path, spec, NO_RUNG)[0]


def batches_of(path: Path, spec: RunSpec, rung: Rung) -> list[Batch]:
    """The first batch of an epoch, in the micro-batches of a rung of the memory ladder."""
    data = open_data(spec, {"numbers": entry(path)}, CPU, preparing(path.parent), 2**30, rung)
    count = data.train.plan.num_micro_batches(spec.training.batch_size)
    batches = [
        replace(batch, arrays={name: array.clone() for name, array in batch.arrays.items()})
        for batch in islice(data.train.iterate(0), count)  # the next one takes its memory
    ]
    data.close()
    return batches


def loss_of(task: MoleculeTask, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The mean over what counts in this batch."""
    loss = task.loss(model, batch)
    return (loss.means() if isinstance(loss, WeightedLoss) else loss)["loss"]


def run_of(task: str, epochs: int = 2, **more: Any) -> dict[str, Any]:
    """In place of the lab's spec."""
    request = request_of(task, data={"dataset": "waves", "split": {"method": "random"}})
    changes = {
        "training": {"epochs": epochs, "batch_size": 16, "gradient_accumulation_steps": 1},
        "evaluation": {"every_steps": None, "batch_size": 16, "metrics": METRICS[task]},
    }
    return merged(merged(request, changes), more)
