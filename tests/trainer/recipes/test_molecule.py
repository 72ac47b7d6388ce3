"""The recipe `molecule`: what it refuses, what it computes, and that it learns."""

import json
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
from tests.trainer.recipes.molecules import (
    CPU,
    FIELDS,
    TASKS,
    batch_of,
    loss_of,
    run_of,
    spec_of,
    write,
)
from tests.trainer.speed.test_capture import Counting, applied, unless_never
from tests.trainer_data.factories import preparing
from worker.trainer import build as prepare
from worker.trainer.data.batch import Batch, BatchShapes
from worker.trainer.data.dataset import open_data
from worker.trainer.data.source import Field, arrays_of
from worker.trainer.errors import DataError, SpecMismatch
from worker.trainer.recipes.molecule import MoleculeTask
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.recipes.sums import Sums
from worker.trainer.speed import cuda_graph
from worker.trainer.speed.proof import STEPS


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
        ("regression", {}, {"targets": Array((3, 2), "float32")}, "learns a number, or a row"),
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


@pytest.mark.parametrize("readout", ["mean", "sum", "both"])
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("task", TASKS)
def test_as_many_parameters_as_it_says(task: str, shape: tuple[int, ...], readout: str) -> None:
    classes = {"classes": 5} if task == "classification" else {}
    spec = spec_of(task, recipe={"readout": readout, **classes})
    fields = {**FIELDS, "targets": Field(shape, np.dtype("f4"))}
    made = MoleculeTask.for_run(spec, fields)
    model = made.build_model({}, made.made_up_tables())
    parameters = sum(p.numel() for p in model.parameters())
    assert spec.recipe.num_parameters(spec.data, arrays_of(fields)) == parameters
    groups = made.parameter_groups(model)
    assert sum(p.numel() for group in groups.values() for p in group) == parameters
    assert len(list(made.blocks(model))) == 2
    for size in (1, 20):
        batch = made.made_up(size, CPU)
        assert loss_of(made, model, batch).isfinite()
        sums = Sums(made)
        with torch.inference_mode():
            sums.add(made.measure(model, batch), size)
    metrics = spec.evaluation.metrics
    several = shape != () and task != "masked"
    by_target = {f"{name}_{target}" for name in metrics for target in range(3) if several}
    assert sums.scores().keys() == {"loss", *metrics, *by_target}


def test_what_a_batch_is_filled_up_with_changes_nothing(tmp_path: Path) -> None:
    """Nor do the other molecules: each is answered as if it were alone."""
    spec = spec_of("regression", training={"batch_size": 16})
    batch = batch_of(write(tmp_path / "a.h5"), spec)
    task = MoleculeTask.for_run(spec, FIELDS)
    model = task.build_model({}, task.made_up_tables()).eval()
    assert isinstance(model, torch.nn.Module)
    answers = model(*task._graphs(batch))
    node = edge = 0
    for number in range(batch.size):
        nodes, edges = batch.arrays["molecules/counts"][number].tolist()
        atoms, bonds = slice(node, node + nodes), slice(edge, edge + edges)
        alone = Batch(
            {
                "molecules": batch.arrays["molecules"][atoms],
                "molecules/samples": torch.zeros(nodes, dtype=torch.int64),
                "molecules/counts": torch.tensor([[nodes, edges]]),
                "molecules/edges": batch.arrays["molecules/edges"][bonds] - node,
                "molecules/edge_values": batch.arrays["molecules/edge_values"][bonds],
            },
            1,
        )
        torch.testing.assert_close(model(*task._graphs(alone))[0], answers[number])
        node, edge = node + nodes, edge + edges


def test_a_hidden_atom_is_not_shown(tmp_path: Path) -> None:
    """What it is changes no answer, its own or another's; that it is hidden does."""
    spec = spec_of("masked", recipe={"mask_fraction": 0.5}, training={"batch_size": 16})
    batch = batch_of(write(tmp_path / "a.h5"), spec)
    task = MoleculeTask.for_run(spec, FIELDS)
    model = task.build_model({}, task.made_up_tables()).eval()
    graphs = task._graphs(batch)
    hides = torch.rand(len(graphs[0])) < 0.5
    changed = graphs[0].clone()
    changed[hides] = (changed[hides] + 1) % 8
    given = graphs[1:3]
    answers = model(graphs[0], *given, hides)
    assert torch.equal(answers, model(changed, *given, hides))
    assert not torch.equal(answers, model(graphs[0], *given, ~hides))
    torch.manual_seed(0)
    each, hidden, _ = task._masked(model, batch)
    assert not hidden[graphs[3] == batch.size].any()
    assert len(each) == len(graphs[0])


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


@pytest.mark.parametrize(("task", "weights"), [("masked", None), ("classification", [1.0, 3.0])])
def test_a_step_is_captured_for_each_shape(
    molecules: Lab, monkeypatch: pytest.MonkeyPatch, task: str, weights: list[float] | None
) -> None:
    """And the training is the same to the last bit. The CPU of this test stands for a GPU."""
    monkeypatch.setattr(prepare, "why_not", lambda _, spec, *__: unless_never(spec))
    monkeypatch.setattr(cuda_graph, "GraphCapturer", Counting)
    write(molecules.data, classes=task == "classification")
    patch = run_of(task, class_weights=weights)
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


def test_an_infinite_property_ends_the_run_with_its_place(molecules: Lab) -> None:
    with h5py.File(molecules.data, "r+") as file:
        file["targets"][149:] = np.nan
        file["targets"][150:] = np.inf
    with pytest.raises(DataError) as caught:
        molecules.run(patch=run_of("regression", data={"standardize": {"targets": False}}))
    told = "'targets' has inf in row 150 of waves.h5, and a property is a finite number"
    assert told in caught.value.message


def test_a_class_that_is_no_integer_ends_the_run_with_the_fix(molecules: Lab) -> None:
    with h5py.File(molecules.data, "r+") as file:
        file["targets"][:] = 0.0
        file["targets"][7] = 0.5
    with pytest.raises(DataError) as caught:
        molecules.run(patch=run_of("classification"))
    told = (
        "'targets' has 0.5 in row 7 of waves.h5, and classes are whole numbers from 0 to 1. Number "
        "the classes so, raise recipe.classes if there are more of them, or learn the number "
        "itself by recipe.task: regression."
    )
    assert told in caught.value.message


def test_molecules_of_one_scaffold_are_in_one_part(molecules: Lab) -> None:
    """By `method: groups`, as the file names the scaffolds: whole numbers or text."""
    with h5py.File(molecules.data, "r+") as file:
        file["targets"][:] = np.arange(200)
        file["scaffold"] = (np.arange(200) * 7 % 40).astype(np.int32)
    split = {"method": "groups", "field": "scaffold", "validation_fraction": 0.3}
    patch = run_of("regression", epochs=1, data={"split": split})
    assert molecules.run(patch=patch).result["last"]["val_loss"] > 0
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    data = open_data(spec, molecules.datasets(), CPU, preparing(molecules.root), 2**30)
    assert data.validation is not None
    assert data.test is not None
    seen = [
        {int(row) * 7 % 40 for batch in part.iterate(0) for row in batch.arrays["targets"]}
        for part in (data.train, data.validation, data.test)
    ]
    data.close()
    assert all(seen)
    assert sum(map(len, seen)) == len(set().union(*seen)) == 40


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
