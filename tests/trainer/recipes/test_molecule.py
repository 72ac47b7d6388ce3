"""The recipe `molecule`: what it refuses, what it computes, and that it learns."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from app.planning.ladder import NO_RUNG
from app.spec.recipe import Array, Problem
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, Lab, StopAtPoll, merged
from tests.trainer.speed.test_capture import Counting, applied, unless_never
from tests.trainer_data.factories import entry, preparing
from tests.trainer_data.test_packed import graphs_of
from worker.trainer import build as prepare
from worker.trainer.data.batch import Batch, BatchShapes
from worker.trainer.data.dataset import open_data
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.data.source import Field, arrays_of
from worker.trainer.errors import DataError, SpecMismatch
from worker.trainer.recipes.molecule import MoleculeTask
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.speed import cuda_graph
from worker.trainer.speed.proof import STEPS

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


def problems_of(spec: RunSpec, **arrays: Array) -> list[Problem]:
    return list(spec.recipe.problems(spec.data, {**arrays_of(FIELDS), **arrays}))


@pytest.mark.parametrize("task", TASKS)
def test_what_fits_has_no_problem(task: str) -> None:
    assert problems_of(spec_of(task)) == []


@pytest.mark.parametrize(
    ("task", "patch", "arrays", "told"),
    [
        ("masked", {"data": {"targets": ["targets"]}}, {}, "learns from the molecules alone"),
        ("masked", {"data": {"standardize": {"targets": True}}}, {}, "standardizes no targets"),
        ("regression", {"data": {"standardize": {"inputs": True}}}, {}, "standardizes no inputs"),
        ("regression", {"data": {"inputs": ["molecules", "targets"]}}, {}, "one array in data.in"),
        ("regression", {"data": {"targets": ["molecules"]}}, {}, "samples of graphs; task regress"),
        ("regression", {}, {"targets": Array((3,), "float32")}, "one number of each molecule"),
        ("regression", {}, {"molecules": Array((9, 3), "uint8", True)}, "reads packed graphs"),
        ("regression", {}, {"molecules": Array((3,), "float32", rows=9.0)}, "a row of whole"),
        ("regression", {}, {"molecules/edge_values": Array((2,), "float32", rows=9.0)}, "bonds ha"),
    ],
)
def test_what_does_not_fit_is_told(
    task: str, patch: dict[str, Any], arrays: dict[str, Array], told: str
) -> None:
    [problem] = problems_of(spec_of(task, **patch), **arrays)
    assert told in problem.message
    assert problem.why


def test_other_recipes_take_no_graphs() -> None:
    request = {"recipe": {"kind": "sequence"}, "data": {"dataset": "a", "inputs": ["molecules"]}}
    with pytest.raises(SpecMismatch, match="'molecules' is packed: its samples are graphs"):
        SequenceTask.for_run(RunSpec.model_validate_json(json.dumps(request)), FIELDS)


@pytest.mark.parametrize("task", TASKS)
def test_as_many_parameters_as_it_says(task: str) -> None:
    spec = spec_of(task, recipe={"classes": 5} if task == "classification" else {})
    made = MoleculeTask.for_run(spec, FIELDS)
    model = made.build_model({}, {})
    parameters = sum(p.numel() for p in model.parameters())
    assert spec.recipe.num_parameters(spec.data, arrays_of(FIELDS)) == parameters
    groups = made.parameter_groups(model)
    assert sum(p.numel() for group in groups.values() for p in group) == parameters
    assert len(list(made.blocks(model))) == 2
    for size in (1, 5):
        batch = made.made_up(size, CPU)
        assert made.loss(model, batch)["loss"].isfinite()
        sums = {name: one.item() for name, one in made.measure(model, batch).items()}
        assert made.scores(sums, size).keys() == {"loss", *made.spec.evaluation.metrics}


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


def batch_of(path: Path, spec: RunSpec, loader: dict[str, Any] | None = None) -> Batch:
    data = open_data(spec, {"numbers": entry(path)}, CPU, preparing(path.parent), 2**30)
    [batch, *_] = data.train.iterate(0)
    arrays = {name: array.clone() for name, array in batch.arrays.items()}
    data.close()
    return replace(batch, arrays=arrays)


def test_what_a_batch_is_filled_up_with_changes_nothing(tmp_path: Path) -> None:
    """Nor do the other molecules: each is answered as if it were alone."""
    spec = spec_of("regression", training={"batch_size": 16})
    batch = batch_of(write(tmp_path / "a.h5"), spec)
    task = MoleculeTask.for_run(spec, FIELDS)
    model = task.build_model({}, {}).eval()
    assert isinstance(model, torch.nn.Module)
    answers = model(task._graphs(batch))
    node = edge = 0
    for number in range(batch.size):
        nodes, edges = batch.arrays["molecules/counts"][number].tolist()
        atoms, bonds = slice(node, node + nodes), slice(edge, edge + edges)
        alone = Batch(
            {
                "molecules": batch.arrays["molecules"][atoms],
                "molecules/samples": torch.zeros(nodes, dtype=torch.int64),
                "molecules/edges": batch.arrays["molecules/edges"][bonds] - node,
                "molecules/edge_values": batch.arrays["molecules/edge_values"][bonds],
            },
            1,
        )
        torch.testing.assert_close(model(task._graphs(alone))[0], answers[number])
        node, edge = node + nodes, edge + edges


def test_a_hidden_atom_is_not_shown(tmp_path: Path) -> None:
    """What it is changes no answer, its own or another's; that it is hidden does."""
    spec = spec_of("masked", recipe={"mask_fraction": 0.5}, training={"batch_size": 16})
    batch = batch_of(write(tmp_path / "a.h5"), spec)
    task = MoleculeTask.for_run(spec, FIELDS)
    model = task.build_model({}, {}).eval()
    graphs = task._graphs(batch)
    hides = torch.rand(len(graphs[0])) < 0.5
    changed = graphs[0].clone()
    changed[hides] = (changed[hides] + 1) % 8
    assert torch.equal(model(graphs, hides), model((changed, *graphs[1:]), hides))
    assert not torch.equal(model(graphs, hides), model(graphs, ~hides))
    torch.manual_seed(0)
    each, hidden, _ = task._masked(model, batch)
    assert not hidden[graphs[3] == batch.size].any()
    assert len(each) == len(graphs[0])


def run_of(task: str, epochs: int = 2, **more: Any) -> dict[str, Any]:
    """In place of the lab's spec."""
    request = request_of(task, data={"dataset": "waves", "split": {"method": "random"}})
    changes = {
        "training": {"epochs": epochs, "batch_size": 16, "gradient_accumulation_steps": 1},
        "evaluation": {"every_steps": None, "batch_size": 16, "metrics": METRICS[task]},
    }
    return merged(merged(request, changes), more)


@pytest.fixture
def molecules(lab: Lab) -> Lab:
    write(lab.data)
    return lab


@pytest.mark.parametrize(
    ("task", "metric", "better"),
    [("masked", "accuracy", 0.7), ("classification", "accuracy", 0.9), ("regression", "mae", 9.0)],
)
def test_it_learns(molecules: Lab, task: str, metric: str, better: float) -> None:
    """Naive are 0.13 or so, about a half, and an error of 45."""
    write(molecules.data, classes=task == "classification")
    best = molecules.run(patch=run_of(task, epochs=25)).result["best"][f"val_{metric}"]
    assert best < better if metric == "mae" else best > better


@pytest.mark.parametrize(
    ("loader", "polls"),
    [
        ({"kind": "chunked", "residency": "resident"}, 24),
        ({"kind": "chunked", "residency": "stream", "chunk_size": "2KiB"}, 14),
        ({"kind": "dataloader"}, 14),
    ],
    ids=["resident", "stream", "dataloader"],
)
@pytest.mark.parametrize("task", ["masked", "regression"])
def test_a_run_that_was_stopped_goes_on_to_the_bit(
    molecules: Lab, task: str, loader: dict[str, Any], polls: int
) -> None:
    """Whatever the loader, the training is the same."""
    straight = molecules.run(patch=run_of(task))
    run_dir = molecules.new_run()
    patch = run_of(task, data={"loader": loader})
    for stop in (StopAtPoll(polls), StopAtPoll()):
        outcome = molecules.run(run_dir, patch, stop=stop)
    restored = outcome.of_kind("restored")[0]["step"]
    assert 0 < restored < 18
    assert (outcome.weights, outcome.losses) == (straight.weights, straight.losses)


def test_a_step_is_captured_for_each_shape(molecules: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the training is the same to the last bit. The CPU of this test stands for a GPU."""
    monkeypatch.setattr(prepare, "why_not", lambda _, spec, *__: unless_never(spec))
    monkeypatch.setattr(cuda_graph, "GraphCapturer", Counting)
    patch = run_of("masked")
    launched = molecules.run(patch=merged(patch, {"runtime": {"cuda_graphs": "never"}}))
    captured = molecules.run(patch=patch)
    found = applied(captured)
    assert (found["captured"], found["identical"], found["why_not"]) == (True, True, None)
    assert 3 <= found["graphs"] <= 8
    assert Counting.runs == found["graphs"] * STEPS + 2 * 8  # and the last batch of each epoch
    assert (captured.weights, captured.losses) == (launched.weights, launched.losses)


def test_a_step_of_several_batches_is_not_captured(molecules: Lab) -> None:
    patch = run_of("masked", training={"gradient_accumulation_steps": 2})
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    data = open_data(spec, molecules.datasets(), CPU, preparing(molecules.root), 2**30)
    step: Any = SimpleNamespace(
        model=torch.nn.Linear(1, 1), precision=SimpleNamespace(device=torch.device("cuda"))
    )
    assert "in all combinations of them" in str(cuda_graph.why_not(step, spec, data, NO_RUNG))
    data.close()


@pytest.mark.parametrize("part", ["nodes", "edge_values", "targets"])
def test_a_number_that_is_out_of_range_ends_the_run_with_its_place(
    molecules: Lab, part: str
) -> None:
    write(molecules.data, classes=True)
    with h5py.File(molecules.data, "r+") as file:
        begin = file["molecules/node_offsets" if part == "nodes" else "molecules/edge_offsets"][7]
        array, row = (file["targets"], 7) if part == "targets" else (
            file[f"molecules/{part}"], begin
        )  # fmt: skip
        array[row] = 130
    with pytest.raises(DataError) as caught:
        molecules.run(patch=run_of("classification"))
    assert f"130{'.0' if part == 'targets' else ' as feature 0'} in row 7 of waves.h5" in (
        caught.value.message
    )


def test_fine_tuning_begins_with_what_was_learned_of_masked_atoms(molecules: Lab) -> None:
    """By the names of its weights; the head is new, and the encoder has a rate of its own."""
    learned = molecules.run(patch=run_of("masked"))
    path = str(learned.checkpoint())
    patch = run_of("regression", optimizer={"lr": 1e-3, "backbone_lr": 1e-4})
    patch["init_from"] = {"run": 1, "prefix": "encoder."}
    begun = [{"path": path, "carry": "init", "own": False}]
    told = molecules.run(patch=patch, restore=begun).of_kind("applied")[0]["applied"]
    assert told["init_from"]["matched"] == told["init_from"]["parameters"] == 15
    assert told["learning_rates"] == {"backbone": 1e-4, "head": 1e-3}


def test_compiled_steps_have_a_graph_for_each_shape() -> None:
    shapes = BatchShapes({16: ({"a": 8}, {"a": 16}, {"a": 64}), 5: ({"a": 32},)}, has_spare=True)
    found = [(size, bucket["a"]) for size, bucket in shapes.each((16, 5))]
    assert found == [(16, 8), (16, 16), (5, 32)]
    assert shapes.bucket(16, {"a": 16}) == {"a": 64}  # a row is free at least
    with pytest.raises(RuntimeError, match="no batch of 16 samples"):
        shapes.bucket(16, {"a": 64})
