"""Exports: what is written computes what the checkpoint does, and is whole or not there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch

from app.spec.run import RunSpec
from stoker.manifest import parse_manifest
from tests.trainer.lab import BASE_SPEC, Lab, Outcome, merged
from tests.trainer.recipes import molecules
from tests.trainer.recipes.panels import ENTITIES, GRAPH, WINDOW, made_panel, with_recipe
from tests.trainer.recipes.test_board import LEGAL, PLAY, positions
from tests.trainer.recipes.test_ragged import RAGGED, add_events
from tests.trainer.test_averaging import SWA, NormedTask, stopped_while_updating
from worker.trainer.checkpoints import disk
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field
from worker.trainer.errors import SpecMismatch, TrainerError
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.tools.panel.panel_cut import PanelCut, write_panel
from worker.trainer.weights import exporting as tool
from worker.trainer.weights.make import make_export

SHORT: dict[str, Any] = {
    "recipe": {"num_layers": 1, "dropout": 0.0},
    "training": {"max_steps": 4, "gradient_accumulation_steps": 1},
    "checkpoint": {"every_steps": None},
    "data": {"split": {"test_fraction": 0.0}},
}


def order_for(lab: Lab, outcome: Outcome, format_: str, name: str = "made") -> dict[str, Any]:
    """As the worker gives it (worker.jobs.export_work)."""
    attempt = json.loads((outcome.folder / "spec.json").read_text())
    return {
        "run_id": attempt["run_id"],
        "checkpoint_id": 5,
        "step": 4,
        "format": format_,
        "checkpoint": str(outcome.checkpoint()),
        "out": str(outcome.run_dir / "exports" / name),
        "run_dir": str(outcome.run_dir),
        "spec": attempt["spec"],
        "datasets": attempt["datasets"],
        "threads": 1,
        "data_cache": {"folder": str(lab.root / "cache"), "most_bytes": 2**20},
    }


def trained(lab: Lab, patch: dict[str, Any] | None = None) -> Outcome:
    patch = patch or {}
    is_other = "kind" in patch.get("recipe", {})
    return lab.run(patch=merged(SHORT | {"recipe": {}} if is_other else SHORT, patch))


def answers(folder: Path, **inputs: Any) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    found: list[np.ndarray[Any, Any]] = session.run(None, inputs)
    return found


def by_name(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["model"]: one for one in made["facts"]["measured"]}


@pytest.mark.parametrize(
    "recipe",
    [{}, {"num_layers": 2, "dropout": 0.2}, {"encoder": "gru", "num_layers": 2, "dropout": 0.2}],
    ids=["one layer", "lstm", "gru"],
)
def test_raw_features_become_raw_targets_for_any_batch(lab: Lab, recipe: dict[str, Any]) -> None:
    outcome = trained(lab, {"recipe": recipe})
    order = order_for(lab, outcome, "onnx")
    made = make_export(order)
    folder = Path(order["out"])
    with h5py.File(lab.data) as file:
        features, targets = file["features"][:], file["targets"][:]
    facts = made["facts"]
    assert facts["inputs"] == [{"name": "features", "dtype": "float32", "shape": ["batch", 12, 3]}]
    assert facts["outputs"] == [{"name": "targets", "dtype": "float32", "shape": ["batch", 4]}]
    assert b"/worker/trainer" not in (folder / "model.onnx").read_bytes()
    (forecast,) = answers(folder, features=features)
    (first,) = answers(folder, features=features[:1])
    np.testing.assert_allclose(forecast[:1], first, rtol=1e-5)
    held_out = slice(-facts["samples"], None)
    mae = np.abs(forecast - targets)[held_out].mean()
    last = outcome.result["last"]["val_mae"]
    assert mae == pytest.approx(last, rel=1e-5)
    found = by_name(made)
    assert (facts["part"], facts["samples"]) == ("validation", 12)
    assert found["pytorch"]["scores"]["mae"] == pytest.approx(last, rel=1e-6)
    assert found["onnx"]["scores"]["mae"] == pytest.approx(last, rel=1e-5)
    assert 0 <= found["onnx"]["max_difference"] < 1e-4
    assert found["onnx"]["seconds_per_batch"] > 0
    assert found["pytorch"]["max_difference"] is None


def test_quantile_forecasts_are_exported_with_their_levels(lab: Lab) -> None:
    levels = [0.05, 0.5, 0.95]
    outcome = trained(lab, {"recipe": {"loss": "quantile", "quantiles": levels}})
    order = order_for(lab, outcome, "onnx")
    made = make_export(order)
    folder = Path(order["out"])
    (output,) = made["facts"]["outputs"]
    assert output == {"name": "targets_quantiles", "dtype": "float32", "shape": ["batch", 4, 3]}
    assert parse_manifest((folder / "manifest.json").read_bytes())["recipe"]["levels"] == levels
    with h5py.File(lab.data) as file:
        (forecasts,) = answers(folder, features=file["features"][:])
        targets = file["targets"][:]
    assert (np.diff(forecasts, axis=-1) >= 0).all()
    held_out = slice(-made["facts"]["samples"], None)
    mae = np.abs(forecasts[..., 1] - targets)[held_out].mean()
    assert mae == pytest.approx(outcome.result["last"]["val_mae"], rel=1e-5)


@pytest.mark.parametrize("inputs", ["flat", "features"])
def test_classes_are_exported_as_logits(lab: Lab, inputs: str) -> None:
    with h5py.File(lab.data, "a") as file:
        features = file[inputs][:]
        labels = np.digitize(file["targets"][:, 0], [18, 22])
        file["label"] = labels
    outcome = trained(lab, {
        "recipe": {"task": "classification", "classes": 3, "patch": 1},
        "data": {"inputs": [inputs], "targets": ["label"]},
        "evaluation": {"metrics": ["f1", "accuracy", "auc"]},
    })  # fmt: skip
    order = order_for(lab, outcome, "onnx")
    made = make_export(order)
    (output,) = made["facts"]["outputs"]
    assert output == {"name": "logits", "dtype": "float32", "shape": ["batch", 3]}
    (logits,) = answers(Path(order["out"]), **{inputs: features})
    held_out = slice(-made["facts"]["samples"], None)
    accuracy = (logits.argmax(1) == labels)[held_out].mean()
    assert accuracy == pytest.approx(outcome.result["last"]["val_accuracy"])
    for name in ("f1", "accuracy", "auc"):
        scores = by_name(made)["onnx"]["scores"]
        assert scores[name] == pytest.approx(outcome.result["last"][f"val_{name}"], abs=1e-3)


def test_a_manifest_names_every_file_with_its_hash(lab: Lab) -> None:
    outcome = trained(lab)
    order = order_for(lab, outcome, "safetensors")
    made = make_export(order)
    folder = Path(order["out"])
    manifest = parse_manifest((folder / "manifest.json").read_bytes())
    assert sorted(manifest["files"]) == ["model.safetensors"]
    assert made["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert manifest["recipe"]["encoder"] == "lstm"
    saved = safetensors.torch.load_file(outcome.checkpoint() / "model.safetensors")
    given = safetensors.torch.load_file(folder / "model.safetensors")
    assert given.keys() == saved.keys()
    assert all(torch.equal(given[name], saved[name]) for name in saved)
    assert [path.name for path in folder.parent.iterdir()] == ["made"]


@pytest.mark.parametrize("stacked", [{}, {"num_layers": 2, "dropout": 0.2}], ids=["one", "two"])
def test_weights_of_8_bits_are_measured_beside_the_original(
    lab: Lab, stacked: dict[str, Any]
) -> None:
    """By the batches that the run's evaluations look at."""
    wide = {"recipe": {"hidden_size": 64, **stacked}, "evaluation": {"max_batches": 2}}
    order = order_for(lab, trained(lab, wide), "int8")
    found = by_name(made := make_export(order))
    assert made["facts"]["samples"] == 10
    assert list(found) == ["pytorch", "onnx", "int8"]
    assert found["int8"]["bytes"] < 0.5 * found["onnx"]["bytes"]
    assert found["int8"]["max_difference"] > found["onnx"]["max_difference"]
    mae = found["pytorch"]["scores"]["mae"]
    assert found["int8"]["scores"]["mae"] != mae
    assert found["int8"]["scores"]["mae"] == pytest.approx(mae, rel=0.1)
    assert sorted(p.name for p in Path(order["out"]).iterdir()) == ["manifest.json", "model.onnx"]


@pytest.mark.minutes
def test_a_gru_is_not_quantized(lab: Lab) -> None:
    outcome = trained(lab, {"recipe": {"encoder": "gru"}})
    order = order_for(lab, outcome, "int8", "small")
    with pytest.raises(TrainerError, match=r"has GRU layers.*Export it as onnx, or train it with"):
        make_export(order)
    assert not list(outcome.run_dir.glob("exports/*small*"))


@pytest.mark.minutes
def test_a_transformer_over_several_timeframes(lab: Lab) -> None:
    with h5py.File(lab.data, "r+") as file:
        file["slow"] = (1000 * file["features"][:, 1::2, :2]).astype(np.float32)
    recipe = {"encoder": "transformer", "hidden_size": 16, "fusion": "block"}
    outcome = trained(lab, {"recipe": recipe, "data": {"inputs": ["features", "slow"]}})
    found = by_name(make_export(order_for(lab, outcome, "int8")))
    assert found["onnx"]["max_difference"] < 1e-4
    assert found["int8"]["bytes"] < found["onnx"]["bytes"]


@pytest.mark.minutes
def test_ragged_samples_come_with_their_lengths(lab: Lab) -> None:
    add_events(lab.data, np.random.default_rng(3).integers(1, 13, 60))
    made = make_export(order := order_for(lab, trained(lab, RAGGED), "onnx"))
    assert [one["name"] for one in made["facts"]["inputs"]] == ["events", "events/lengths"]
    inputs = {"events": np.ones((2, 12, 3), np.float32), "events/lengths": np.array([5, 12])}
    (short, whole) = answers(Path(order["out"]), **inputs)[0]
    assert not np.array_equal(short, whole)
    inputs["events"][0, 5:] = 9.0  # behind its end
    assert np.array_equal(answers(Path(order["out"]), **inputs)[0][0], short)


@pytest.mark.minutes
@pytest.mark.parametrize(("graph", "loss"), [(GRAPH, "mae"), (None, "mae"), (GRAPH, "quantile")])
def test_panels_with_who_looks_at_whom(lab: Lab, graph: dict[str, Any] | None, loss: str) -> None:
    write_panel(lab.data, made_panel(), PanelCut(WINDOW, (1, 3), "own"))
    outcome = trained(lab, with_recipe(graph=graph, loss=loss))
    made = make_export(order_for(lab, outcome, "onnx"))
    names = [one["name"] for one in made["facts"]["inputs"]]
    assert names == ["features", "present", *(["looks_at"] if graph else [])]
    (output,) = made["facts"]["outputs"]
    levels = [3] if loss == "quantile" else []
    assert output["shape"] == ["batch", ENTITIES, 2, *levels]
    assert output["name"] == ("targets_quantiles" if levels else "targets")
    found = by_name(made)
    assert found["onnx"]["scores"] == pytest.approx(found["pytorch"]["scores"], rel=1e-4)


@pytest.mark.parametrize("stage", [LEGAL, PLAY], ids=["legal", "play"])
def test_boards_of_packed_bits(lab: Lab, stage: dict[str, Any]) -> None:
    with h5py.File(lab.data, "r+") as file:
        for name, array in positions().items():
            file[name] = array
    outcome = trained(lab, stage)
    made = make_export(order := order_for(lab, outcome, "int8"))
    names = [one["name"] for one in made["facts"]["outputs"]]
    assert names == (["legal"] if stage is LEGAL else ["policy", "value"])
    found = by_name(made)
    assert found["onnx"]["scores"] == pytest.approx(found["pytorch"]["scores"], rel=1e-4)
    small = found["int8"]
    assert small["scores"] == pytest.approx(found["pytorch"]["scores"], rel=0.02)
    assert small["bytes"] < 0.7 * found["onnx"]["bytes"]
    assert small["max_difference"] > 100 * found["onnx"]["max_difference"]
    assert small["seconds_per_batch"] > 0
    logits = answers(Path(order["out"]), planes=positions()["planes"][:3])[0]
    assert logits.shape == (3, 32)


def test_what_is_there_is_taken_and_what_is_damaged_is_made_again(lab: Lab) -> None:
    order = order_for(lab, trained(lab), "safetensors")
    made = make_export(order)
    file = Path(order["out"]) / "model.safetensors"
    written = file.stat().st_mtime_ns
    assert make_export(order) == made
    assert file.stat().st_mtime_ns == written
    file.write_bytes(b"cut")
    assert make_export(order) == made
    assert file.stat().st_size > 3


def test_an_export_that_breaks_off_leaves_nothing(lab: Lab, monkeypatch: Any) -> None:
    order = order_for(lab, trained(lab), "safetensors")
    exports = Path(order["out"]).parent
    exports.mkdir()
    (exports / ".made.1.tmp").mkdir()  # of a process that was killed

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", order["out"])

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", full)
        with pytest.raises(OSError, match="No space"):
            make_export(order)
    assert list(exports.iterdir()) == []
    make_export(order)
    assert [path.name for path in exports.iterdir()] == ["made"]


def test_a_damaged_checkpoint_is_not_exported(lab: Lab) -> None:
    outcome = trained(lab)
    order = order_for(lab, outcome, "safetensors")
    weights = outcome.checkpoint() / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(TrainerError, match=r"Checkpoint 5 is damaged .*not as it was written"):
        make_export(order)


@pytest.mark.parametrize("format_", ["safetensors", "onnx"])
def test_weights_whose_statistics_are_due_are_not_exported(
    lab: Lab, monkeypatch: Any, format_: str
) -> None:
    """Once the run has gone on, they are."""
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: NormedTask)
    monkeypatch.setattr("worker.trainer.weights.evaluated.task_of", lambda kind: NormedTask)
    order = order_for(lab, first := stopped_while_updating(lab), format_)
    with pytest.raises(TrainerError, match=r"saved while batch norm's .*; or export another"):
        make_export(order)
    assert not list(first.run_dir.glob("exports/*"))
    make_export(order_for(lab, lab.run(first.run_dir, SWA), format_))


def test_the_command_says_what_it_lacks(lab: Lab, monkeypatch: Any) -> None:
    outcome = trained(lab)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for name in [n for n in sys.modules if n.startswith("worker.trainer.weights.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    told = tool._answer(order_for(lab, outcome, "onnx"))["error"]
    assert told.startswith("This worker has no onnxruntime, which onnx needs.")
    assert "pip install 'stoker[export]'" in told
    assert "error" not in tool._answer(order_for(lab, outcome, "safetensors"))


def test_the_command_prints_one_document(lab: Lab) -> None:
    order = order_for(lab, trained(lab), "safetensors")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.trainer.weights.exporting"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["facts"].keys() == {"versions"}


def test_packed_samples_have_no_model_of_one_sample() -> None:
    spec = RunSpec.model_validate_json(json.dumps(BASE_SPEC))
    packed = Field((3,), np.dtype("float32"), rows=4.0)
    task = SequenceTask(spec, {"features": packed, "targets": Field((4,), np.dtype("float32"))})
    with pytest.raises(SpecMismatch, match=r"graphs of different sizes, .* --format safetensors"):
        task.exported(Batch({}, 2))


@pytest.mark.parametrize("format_", ["onnx", "int8"])
@pytest.mark.parametrize("task", ["masked", "regression", "classification"])
def test_molecules_are_answered_in_any_number(lab: Lab, task: str, format_: str) -> None:
    """Also of other numbers of atoms and bonds than those of the example."""
    molecules.write(lab.data, classes=task == "classification")
    chronological = {"data": {"split": {"method": "chronological"}}}
    outcome = lab.run(patch=molecules.run_of(task, epochs=1, **chronological))
    order = order_for(lab, outcome, format_)
    made = make_export(order)
    scores = by_name(made)
    metric = molecules.METRICS[task][0]
    last = outcome.result["last"][f"val_{metric}"]
    assert scores["pytorch"]["scores"][metric] == pytest.approx(last, rel=1e-6)
    assert scores["onnx"]["scores"][metric] == pytest.approx(last, rel=1e-4)
    shapes = {one["name"]: one["shape"] for one in made["facts"]["inputs"]}
    assert shapes["molecules"] == ["atoms", 3]
    assert shapes["molecules/edges"] == ["bonds", 2]
    (output,) = made["facts"]["outputs"]
    assert output["shape"][0] == ("atoms" if task == "masked" else "batch")
    if task == "masked":
        return
    one_atom = {
        "molecules": np.zeros((1, 3), np.uint8),
        "molecules/edge_values": np.zeros((0, 2), np.uint8),
        "molecules/edges": np.zeros((0, 2), np.int64),
        "molecules/samples": np.zeros(1, np.int64),
        "molecules/counts": np.array([[1, 0]]),
    }
    (alone,) = answers(Path(order["out"]), **one_atom)
    assert alone.shape == (1, output["shape"][1])
