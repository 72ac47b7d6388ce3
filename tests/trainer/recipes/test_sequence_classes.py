"""Task classification of the recipe sequence: scores, weights, baselines, and bad labels."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from app.lifecycle import Reason
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, Lab, merged, step_of
from tests.trainer.recipes.test_baselines import by_name
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field
from worker.trainer.data.source import arrays_of as arrays_of_fields
from worker.trainer.errors import DataError, NothingToScore, SpecMismatch
from worker.trainer.recipes.sequence import SequenceClassesTask, SequenceTask

METRICS = ["accuracy", "f1", "auc"]
CLASSES: dict[str, Any] = {
    "recipe": {"task": "classification", "classes": 3},
    "data": {"targets": ["label"]},
    "evaluation": {"metrics": METRICS},
}
ROWS = merged(
    CLASSES,
    {
        "recipe": {"patch": 1, "num_layers": 1, "dropout": 0.0, "hidden_size": 16},
        "data": {"inputs": ["rows"]},
        "training": {"epochs": 10, "batch_size": 32, "gradient_accumulation_steps": 1},
        "evaluation": {"every_steps": None, "every_epochs": 1},
        "checkpoint": {"every_steps": None},
    },
)


def task_for(
    patch: dict[str, Any], shape: tuple[int, ...] = (12, 3), label: Field | None = None
) -> SequenceTask:
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    fields = {name: Field(shape, np.dtype("f4")) for name in ("features", "rows")}
    return SequenceTask.for_run(spec, {**fields, "label": label or Field((), np.dtype("i8"))})


def samples_of(count: int, classes: int = 3) -> Batch:
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(classes, (count,), generator=random)
    return Batch({"features": torch.randn(count, 12, 3, generator=random), "label": labels}, count)


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_scikit_learn(classes: int) -> None:
    weights = [1.0, 4.0, 0.5][:classes]
    task = task_for(merged(CLASSES, {"recipe": {"classes": classes}, "class_weights": weights}))
    torch.manual_seed(0)
    model = task.build_model({}, {}).eval()
    with torch.no_grad():  # so that scores are apart, as after a training
        model.get_parameter("head.weight").mul_(20)
    batch = samples_of(400, classes)
    labels = batch.arrays["label"].numpy()
    sums = {
        name: total.item() if total.ndim == 0 else total
        for name, total in task.measure(model, batch).items()
    }
    scores = task.scores(sums, 400)
    with torch.no_grad():
        logits = model(batch.arrays["features"])
    assert logits.shape == (400, classes)
    shares, predicted = logits.softmax(1).numpy(), logits.argmax(1).numpy()
    each = np.asarray(weights)[labels]
    assert scores["loss"] == pytest.approx(log_loss(labels, shares, sample_weight=each), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert scores["f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    areas = [roc_auc_score(labels == n, shares[:, n]) for n in range(classes)]
    assert scores["auc"] == pytest.approx(np.mean(areas), abs=1e-3)


def test_f1_passes_over_a_class_that_is_neither_there_nor_predicted() -> None:
    task = task_for(CLASSES)
    right = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)
    there = torch.tensor([4.0, 0.0, 1.0], dtype=torch.float64)
    predicted = torch.tensor([5.0, 0.0, 0.0], dtype=torch.float64)
    sums: dict[str, Any] = {"loss": 1.0, "weight": 5.0, "auc": torch.zeros(3, 2, 1_024)}
    sums |= {"right": right, "there": there, "predicted": predicted}
    with pytest.raises(NothingToScore, match="all samples are of one class"):
        task.scores(sums, 5)
    patched = task_for(merged(CLASSES, {"evaluation": {"metrics": ["f1"]}}))
    expected = f1_score([0, 0, 0, 0, 2], [0, 0, 0, 0, 0], average="macro", zero_division=0)
    sums["right"] = torch.tensor([4.0, 0.0, 0.0], dtype=torch.float64)
    assert patched.scores(sums, 5)["f1"] == pytest.approx(expected)


def test_a_rare_class_weighs_the_same_however_the_step_is_cut() -> None:
    task = task_for(merged(CLASSES, {"class_weights": [1, 20, 3]}))
    torch.manual_seed(0)
    model, whole = task.build_model({}, {}).eval(), samples_of(24)
    parts = [
        Batch({name: one[begin : begin + 6] for name, one in whole.arrays.items()}, 6)
        for begin in range(0, 24, 6)
    ]
    loss, gradients = step_of(task, model, [whole])
    cut_loss, cut_gradients = step_of(task, model, parts)
    assert cut_loss == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(cut_gradients, gradients, rtol=1e-4, atol=1e-6)


def write_rings(lab: Lab, samples: int = 900) -> None:
    """Three classes by the distance from 0: no linear map of a row tells them apart."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(samples, 2))
    label = np.digitize(np.linalg.norm(rows, axis=1), [0.8, 1.5])
    with h5py.File(lab.data, "w") as file:
        file["rows"], file["label"] = rows.astype(np.float32), label
        file["windows"] = np.repeat(rows[:, None], 2, 1).astype(np.float32)


@pytest.mark.parametrize("inputs", [["rows"], ["windows"], ["windows", "rows"]])
def test_a_run_beats_the_best_baseline_where_classes_are_rings(lab: Lab, inputs: list[str]) -> None:
    write_rings(lab)
    result = lab.run(patch=merged(ROWS, {"data": {"inputs": inputs}})).result
    for metric in METRICS:
        best = result["naive"][f"test_{metric}"]
        assert result["test"][f"test_{metric}"] > best + 0.4 * (1 - best)


def test_baselines_are_the_most_common_class_and_a_ridge_on_indicators(lab: Lab) -> None:
    write_rings(lab)
    with h5py.File(lab.data, "a") as file:
        rows, label = file["rows"][:].astype(np.float64), file["label"][:]
        label[:] = np.digitize(rows[:, 0] + 0.3 * rows[:, 1], [-1, 0.4])
        file["label"][:] = label
    result = lab.run(patch=merged(ROWS, {"training": {"epochs": 1}})).result
    training, part = slice(630), slice(630, 810)
    common = np.bincount(label[training]).argmax()
    scores = by_name(result, "val_accuracy")
    assert set(scores) == {"most common class", "ridge on all features"}
    assert scores["most common class"] == pytest.approx((label[part] == common).mean())
    fitted = Ridge(alpha=1e-3).fit(rows[training], np.eye(3)[label[training]])
    answers = fitted.predict(rows[part])
    expected = (answers.argmax(1) == label[part]).mean()
    assert scores["ridge on all features"] == pytest.approx(expected, abs=0.01)
    areas = [roc_auc_score(label[part] == n, answers[:, n]) for n in range(3)]
    assert by_name(result, "val_auc")["ridge on all features"] == pytest.approx(
        np.mean(areas), abs=0.02
    )


def test_a_label_that_is_no_class_is_found_before_the_first_step(lab: Lab) -> None:
    write_rings(lab)
    with h5py.File(lab.data, "a") as file:
        file["label"][700] = 3
    told = re.escape("'label' is 3 in row 700") + ".*recipe.classes is 3"
    with pytest.raises(DataError, match=told) as caught:
        lab.run(patch=ROWS)
    assert caught.value.reason is Reason.data_error


@pytest.mark.parametrize(
    ("patch", "label", "told"),
    [
        ({}, Field((), np.dtype("f4")), "holds float32 numbers, and classes are whole numbers"),
        ({}, Field((3,), np.dtype("i8")), r"int64 \(3,\); a class is one whole number"),
        ({"recipe": {"classes": None}}, None, "needs recipe.classes"),
        ({"recipe": {"loss": "mse"}}, None, "recipe.loss is for task regression"),
        ({"recipe": {"quantiles": [0.1, 0.9]}}, None, "recipe.quantiles is for task regression"),
        ({"data": {"standardize": {"targets": True}}}, None, "standardizes no targets"),
        ({"class_weights": [1, 2]}, None, "class_weights has 2 numbers"),
        ({"recipe": {"task": "regression"}}, None, "recipe.classes is 3, and recipe.task is regr"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    patch: dict[str, Any], label: Field | None, told: str
) -> None:
    with pytest.raises(SpecMismatch, match=told):
        task_for(merged(CLASSES, patch), label=label)


@pytest.mark.parametrize("encoder", ["lstm", "transformer"])
@pytest.mark.parametrize("shape", [(3,), (12, 3)])
def test_the_number_of_parameters_is_known_before(encoder: str, shape: tuple[int, ...]) -> None:
    task = task_for(merged(CLASSES, {"recipe": {"encoder": encoder, "patch": 1}}), shape)
    assert isinstance(task, SequenceClassesTask)
    expected = sum(one.numel() for one in task.build_model({}, {}).parameters())
    fields = arrays_of_fields(task.fields)
    assert task.recipe.num_parameters(task.spec.data, fields) == expected


def test_a_run_resumes_to_the_bit(lab: Lab) -> None:
    write_rings(lab)
    patch = merged(ROWS, {
        "recipe": {"dropout": 0.2}, "class_weights": [1, 2, 3],
        "training": {"epochs": 1}, "checkpoint": {"every_steps": 5},
    })  # fmt: skip
    straight = lab.run(patch=patch)
    stopped = [first for first, _ in lab.interrupted(straight, [9, 16], patch)]
    assert len(stopped) == 2
    manifest = json.loads(Path(straight.checkpoint(), "manifest.json").read_text())
    assert (manifest["recipe"]["task"], manifest["recipe"]["classes"]) == ("classification", 3)


def test_a_test_part_of_one_class_keeps_the_other_scores(lab: Lab) -> None:
    write_rings(lab)
    with h5py.File(lab.data, "a") as file:
        file["label"][810:] = 1
    done = lab.run(patch=merged(ROWS, {"training": {"epochs": 1}}))
    assert done.end is not None
    assert done.end.reason is Reason.completed
    assert {"test_f1", "test_accuracy"} <= done.result["test"].keys()
    assert "test_auc" not in done.result["test"]
    (warning,) = [one for one in done.of_kind("warning") if one["code"] == "test_not_scored"]
    assert warning["message"].startswith(
        "In the test part all samples are of one class, so there is no auc, whatever the model."
    )
    assert warning["message"].count(" so ") == 1
