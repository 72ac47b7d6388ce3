"""The recipe `molecule`: several targets, missing labels, classes, and how it reads out."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from app.spec.stored import read_stored
from tests.trainer.lab import Lab, StopAtPoll, merged
from tests.trainer.recipes.molecules import (
    FIELDS,
    batch_of,
    request_of,
    run_of,
    spec_of,
    write,
)
from tests.trainer.recipes.regressions import one_strength, plain_ridge
from tests.trainer_data.test_packed import graphs_of
from worker.trainer.data.batch import Batch
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.data.source import Field
from worker.trainer.errors import DataError
from worker.trainer.recipes.molecule import MoleculeTask
from worker.trainer.recipes.sums import Sums

__all__ = ["one_strength"]  # a fixture

Values = NDArray[Any]
TRAINING, VALIDATION = slice(140), slice(140, 180)
CHRONOLOGICAL: dict[str, Any] = {"data": {"split": {"method": "chronological"}}}


def with_targets(path: Path, targets: Values) -> Values:
    with h5py.File(path, "r+") as file:
        del file["targets"]
        file["targets"] = targets
    return targets


def several(path: Path, share_missing: float = 0.3) -> Values:
    """Three targets of other scales, float32 (200, 3), of which some are missing."""
    random = np.random.default_rng(0)
    with h5py.File(path) as file:
        first = file["targets"][:]
    targets = np.stack([first, 1000 * first + 5, random.random(200)], 1).astype(np.float32)
    targets[random.random(targets.shape) < share_missing] = np.nan
    return with_targets(path, targets)


def with_several_targets(task: str, **more: Any) -> MoleculeTask:
    fields = {**FIELDS, "targets": Field((3,), np.dtype("f4"))}
    return MoleculeTask.for_run(spec_of(task, **more), fields)


def by_name(result: dict[str, Any], metric: str) -> dict[str, float]:
    return {one["name"]: one["value"] for one in result["baselines"] if one["metric"] == metric}


def test_a_stored_spec_without_a_readout_means_the_mean() -> None:
    document = spec_of("regression").model_dump(mode="json")
    assert document["recipe"].pop("readout") == "both"
    assert read_stored(document).recipe.model_dump()["readout"] == "mean"


def test_a_sum_counts_atoms_and_a_mean_does_not(tmp_path: Path) -> None:
    """Twice the molecule has the same mean and twice the sum."""
    path = write(tmp_path / "a.h5")
    for readout, grows in (("mean", False), ("sum", True), ("both", True)):
        spec = spec_of("regression", recipe={"readout": readout}, training={"batch_size": 16})
        batch = batch_of(path, spec)
        task = MoleculeTask.for_run(spec, FIELDS)
        model = task.build_model({}, task.made_up_tables()).eval()
        atoms, bonds, edges, of, counts = task._graphs(batch)
        twice = (
            torch.cat([atoms, atoms]),
            torch.cat([bonds, bonds]),
            torch.cat([edges, edges + len(atoms)]),
            torch.cat([of, of]),
            counts,
        )
        once = model(*task._graphs(batch))
        assert torch.allclose(model(*twice), once, atol=1e-5) is not grows


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_label_that_is_missing_changes_nothing(tmp_path: Path, task: str) -> None:
    """Neither loss nor gradient nor score depends on what stands in its place or on its answer."""
    metrics = {"regression": ["mae", "rmse"], "classification": ["balanced_accuracy", "auc"]}
    made = with_several_targets(
        task, training={"batch_size": 16}, evaluation={"metrics": metrics[task]}
    )
    batch = batch_of(write(tmp_path / "a.h5"), spec_of(task, training={"batch_size": 16}))
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (16, 3), generator=random).float()
    unknown = torch.rand(16, 3, generator=random) < 0.4
    labels[unknown] = torch.nan
    torch.manual_seed(0)
    model = made.build_model({}, made.made_up_tables())
    batch = Batch({**batch.arrays, "targets": labels}, 16)

    loss = made.loss(model, batch)
    loss.means()["loss"].backward()
    trained = [one for one in model.parameters() if one.grad is not None]
    gradients = [one.grad.clone() for one in trained if one.grad is not None]
    answers = model(*made._graphs(batch))
    if task == "regression":
        each = (answers - labels)[~unknown].abs()
    else:
        logits = answers.view(16, 3, 2)[~unknown]
        each = torch.nn.functional.cross_entropy(logits, labels[~unknown].long(), reduction="none")
    assert loss.weight == len(each) == (~unknown).sum()
    torch.testing.assert_close(loss.means()["loss"], each.mean())
    model.zero_grad()
    each.mean().backward()
    for one, other in zip(trained, gradients, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other, rtol=1e-4, atol=1e-6)

    sums = Sums(made)
    with torch.inference_mode():
        sums.add(made.measure(model, batch), 16)
    scores = sums.scores()
    assert scores["loss"] == pytest.approx(each.mean().item(), rel=1e-5)
    if task == "regression":
        apart = (answers - labels).detach().double().numpy()
        for target in range(3):
            assert scores[f"mae_{target}"] == pytest.approx(
                np.nanmean(abs(apart[:, target])), rel=1e-5
            )
        assert scores["mae"] == pytest.approx(np.nanmean(abs(apart), 0).mean(), rel=1e-5)
        assert scores["rmse"] == pytest.approx(np.sqrt(np.nanmean(apart**2, 0)).mean(), rel=1e-5)
        return
    chances = answers.view(16, 3, 2).softmax(2)[..., 1].detach().numpy()
    areas = []
    for target, there in enumerate((~unknown).T.numpy()):
        truth = labels[:, target].numpy()[there]
        areas.append(roc_auc_score(truth, chances[there, target]))
        # Of ten scores two may share a bin, which is half a pair of 25 or so.
        assert scores[f"auc_{target}"] == pytest.approx(areas[-1], abs=0.05)
        right = (chances[there, target] > 0.5) == truth
        rates = [right[truth == kind].mean() for kind in (0, 1)]
        assert scores[f"balanced_accuracy_{target}"] == pytest.approx(np.mean(rates))
    assert scores["auc"] == pytest.approx(np.mean([scores[f"auc_{n}"] for n in range(3)]))


def test_each_target_is_standardized_by_its_known_labels(molecules: Lab) -> None:
    """And a run with missing labels goes on to the bit."""
    targets = several(molecules.data)
    patch = run_of("regression", **CHRONOLOGICAL)
    straight = molecules.run(patch=patch)
    weights = straight.weights
    run_dir = molecules.new_run()
    for stop in (StopAtPoll(24), StopAtPoll()):
        outcome = molecules.run(run_dir, patch, stop=stop)
    assert outcome.of_kind("restored")[0]["step"] > 0
    assert (outcome.weights, outcome.losses) == (weights, straight.losses)
    model = load_file(straight.checkpoint() / "model.safetensors")
    mean, std = np.nanmean(targets[TRAINING], 0), np.nanstd(targets[TRAINING], 0)
    np.testing.assert_allclose(model["target_mean"].numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(model["target_std"].numpy(), std, rtol=1e-5)
    assert {"val_mae", "val_mae_0", "val_mae_1", "val_mae_2"} <= straight.result["last"].keys()


def test_a_target_without_labels_ends_the_run(molecules: Lab) -> None:
    """In the training part before the first step, in another one when it is evaluated."""
    targets = several(molecules.data)
    targets[TRAINING, 1] = np.nan
    with_targets(molecules.data, targets)
    with pytest.raises(DataError, match="No label of 'targets', column 1 is known in the training"):
        molecules.run(patch=run_of("regression", **CHRONOLOGICAL))
    write(molecules.data)
    targets = several(molecules.data)
    targets[VALIDATION] = np.nan
    with_targets(molecules.data, targets)
    with pytest.raises(DataError, match="In the validation part no label of 'targets' is known"):
        molecules.run(patch=run_of("regression", **CHRONOLOGICAL))


def test_an_auc_of_one_class_is_refused(molecules: Lab) -> None:
    write(molecules.data, classes=True)
    with h5py.File(molecules.data, "r+") as file:
        file["targets"][140:] = 1.0
    patch = run_of("classification", **CHRONOLOGICAL, evaluation={"metrics": ["auc"]})
    with pytest.raises(DataError, match="validation part are of one class of 'targets'"):
        molecules.run(patch=patch)


def test_a_model_that_diverged_has_no_score_of_the_other_targets_alone() -> None:
    task = with_several_targets("regression", evaluation={"metrics": ["mae"]})
    sums = {name: torch.ones(3).double() for name in ("loss", "known", "absolute", "squared")}
    sums["absolute"][1] = torch.nan
    assert np.isnan(task.scores(sums, 3)["mae"])
    sums["known"][1] = 0
    assert task.scores(sums, 3) == {"loss": 1.5, "mae": 1.0, "mae_0": 1.0, "mae_2": 1.0}


def counts_of(path: Path) -> Values:
    """Atoms of each element by molecule, (200, elements)."""
    with h5py.File(path) as file:
        nodes, offsets = file["molecules/nodes"][:, 0], file["molecules/node_offsets"][:]
    return np.array([np.bincount(nodes[slice(*ends)], minlength=8) for ends in pairwise(offsets)])


@pytest.mark.usefixtures("one_strength")
def test_baselines_look_at_known_labels_alone(lab: Lab) -> None:
    write(lab.data)
    targets = several(lab.data)
    request = request_of("regression", **CHRONOLOGICAL, evaluation={"metrics": ["mae"]})
    request["data"].pop("dataset")
    scores = by_name(lab.run(patch=merged(request, {"training": {"epochs": 1}})).result, "val_mae")
    held_out, known, counts = targets[VALIDATION], ~np.isnan(targets[TRAINING]), counts_of(lab.data)
    means = np.nanmean(targets[TRAINING], 0)
    expected = np.nanmean(abs(held_out - means), 0).mean()
    assert scores["training mean"] == pytest.approx(expected, rel=1e-4)
    off = []
    for target in range(3):
        rows = known[:, target]
        forecast = plain_ridge(counts[TRAINING][rows][:, None], targets[TRAINING][rows, target])
        answers = forecast(counts[VALIDATION][:, None])
        off.append(np.nanmean(abs(held_out[:, target] - answers)))
    assert scores["ridge on atom counts"] == pytest.approx(np.mean(off), rel=1e-3)


def bonded(path: Path, count: int = 300) -> None:
    """Rings of 4 to 12 atoms of two elements. The target is the number of bonds between unlike
    atoms, a sum over atoms that depends on their neighbours: rings of equal counts differ in it.
    """
    random = np.random.default_rng(3)
    graphs = graphs_of(random.integers(4, 13, count))
    unlike = []
    for graph in graphs:
        elements = random.integers(0, 2, len(graph["nodes"]))
        ends = np.arange(len(elements))
        after = (ends + 1) % len(elements)
        graph["nodes"] = np.repeat(elements[:, None], 3, 1).astype(np.uint8)
        graph["edges"] = np.stack([ends, after], 1).astype(np.uint16)
        graph["edge_values"] = np.ones((len(ends), 2), np.uint8)
        unlike.append((elements != elements[after]).sum())
    with h5py.File(path, "w") as file:
        write_packed(file, "molecules", graphs)
        file["targets"] = np.array(unlike, np.float32)


def test_it_beats_its_best_baseline_where_neighbours_decide(molecules: Lab) -> None:
    bonded(molecules.data)
    learning = {"optimizer": {"lr": 5e-3}, "evaluation": {"metrics": ["mae"]}}
    patch = run_of("regression", epochs=20, **merged(CHRONOLOGICAL, learning))
    result = molecules.run(patch=patch).result
    best = min(by_name(result, "test_mae").values())
    assert result["test"]["test_mae"] < 0.8 * best
