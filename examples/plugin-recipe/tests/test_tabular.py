"""Both halves of the recipe, without a service: what fits, how large it is, and that it learns."""

import json

import numpy as np
import pytest
import torch
from stoker_tabular.recipe import Tabular
from stoker_tabular.task import TabularTask

from app.spec.recipe import Array
from app.spec.run import RunSpec
from worker.trainer.data.source import Field
from worker.trainer.recipes.base import Batch, TrainingSamples
from worker.trainer.recipes.fitting import MOST_COLUMNS

ROWS = Array((4,), "float32")


def spec_of(**recipe):
    request = {"recipe": {"kind": "tabular", **recipe}, "data": {"dataset": "table"}}
    return RunSpec.model_validate_json(json.dumps(request))


def test_stoker_finds_it_and_knows_its_version():
    spec = spec_of()
    assert isinstance(spec.recipe, Tabular)
    assert spec.recipe.version == "0.1.0"
    assert spec.evaluation.metrics == ("mae",)
    assert spec_of(task="classification", classes=3).evaluation.metrics == ("accuracy",)


@pytest.mark.parametrize(
    ("recipe", "arrays", "told"),
    [
        ({}, {"features": Array((4, 2), "float32"), "targets": Array((), "float32")}, "one row"),
        ({"task": "classification"}, {"features": ROWS}, "needs recipe.classes"),
        (
            {"task": "classification", "classes": 3},
            {"features": ROWS, "targets": Array((2,), "int64")},
            "a class is one number",
        ),
    ],
)
def test_what_does_not_fit_is_told(recipe, arrays, told):
    spec = spec_of(**recipe)
    (problem,) = spec.recipe.problems(spec.data, arrays)
    assert told in problem.message


@pytest.mark.parametrize(
    ("recipe", "target"),
    [({}, ()), ({}, (3,)), ({"task": "classification", "classes": 5}, ())],
)
def test_the_declared_size_is_that_of_the_model(recipe, target):
    spec = spec_of(hidden_size=6, **recipe)
    fields = {"features": Field((4,), np.dtype("f4")), "targets": Field(target, np.dtype("i8"))}
    model = TabularTask.for_run(spec, fields).build_model({}, {})
    arrays = {"features": ROWS, "targets": Array(target, "int64")}
    declared = spec.recipe.num_parameters(spec.data, arrays)
    assert declared == sum(parameter.numel() for parameter in model.parameters())


def test_it_learns_and_its_sums_add_up():
    spec = spec_of(task="classification", classes=2, hidden_size=16)
    fields = {"features": Field((4,), np.dtype("f4")), "targets": Field((), np.dtype("i8"))}
    task = TabularTask.for_run(spec, fields)
    torch.manual_seed(0)
    model = task.build_model({}, {})
    rows = torch.randn(256, 4)
    arrays = {"features": rows, "targets": (rows[:, 0] * rows[:, 1] > 0).long()}
    batch = Batch(arrays, 256)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        task.loss(model, batch)["loss"].backward()
        optimizer.step()
    whole = task.measure(model, batch)
    halves = [
        task.measure(model, Batch({name: one[part] for name, one in arrays.items()}, size))
        for part, size in ((slice(0, 100), 100), (slice(100, 256), 156))
    ]
    for name, total in whole.items():
        torch.testing.assert_close(total, halves[0][name] + halves[1][name])
    scores = task.scores({name: total.item() for name, total in whole.items()}, 256)
    assert scores["accuracy"] > 0.95


def test_a_class_counts_as_much_as_its_weight_says():
    request = {
        "recipe": {"kind": "tabular", "task": "classification", "classes": 3},
        "data": {"dataset": "table"},
    }
    spec = RunSpec.model_validate_json(json.dumps(request | {"class_weights": [1.0, 5.0, 2.0]}))
    assert not list(spec.weight_problems())
    fields = {"features": Field((4,), np.dtype("f4")), "targets": Field((), np.dtype("i8"))}
    batch = Batch({"features": torch.randn(6, 4), "targets": torch.tensor([0, 1, 2, 0, 1, 2])}, 6)
    plain = TabularTask.for_run(spec.model_copy(update={"class_weights": None}), fields)
    weighted = TabularTask.for_run(spec, fields)
    model = weighted.build_model({}, {})
    model.load_state_dict(plain.build_model({}, {}).state_dict())
    forecast = model(batch.arrays["features"])
    alone = torch.nn.functional.cross_entropy(forecast, batch.arrays["targets"], reduction="none")
    expected = (alone * torch.tensor([1.0, 5.0, 2.0, 1.0, 5.0, 2.0])).mean()
    torch.testing.assert_close(weighted.loss(model, batch)["loss"], expected)
    few = spec.model_copy(update={"class_weights": (1.0, 2.0)})
    (problem,) = few.weight_problems()
    assert "2 numbers, and the recipe tabular has 3 classes" in problem.message


def scores_of_baselines(task, rows, targets):
    """Baselines by name, fitted on the first 300 samples and scored on all others."""
    fitted = Batch({"features": rows[:300], "targets": targets[:300]}, 300)
    rest = Batch({"features": rows[300:], "targets": targets[300:]}, len(rows) - 300)
    found = {}
    for name, predictor in task.baselines(TrainingSamples(fitted, None), None).items():
        predictor.register_buffer("class_weights", torch.ones(3))  # the run's model has them
        sums = {key: one.item() for key, one in task.measure(predictor, rest).items()}
        found[name] = task.scores(sums, rest.size)
    return found


def test_numbers_are_compared_with_their_mean_and_a_ridge():
    spec = spec_of()
    fields = {"features": Field((4,), np.dtype("f4")), "targets": Field((2,), np.dtype("f4"))}
    task = TabularTask.for_run(spec, fields)
    rows = torch.randn(400, 4, generator=torch.Generator().manual_seed(5))
    targets = rows @ torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [3.0, -1.0]]) + 7
    scores = scores_of_baselines(task, rows, targets)
    train, test = np.split(targets.double().numpy(), [300])
    expected = np.abs(train.mean(0) - test).mean()
    assert scores["training mean"]["mae"] == pytest.approx(expected, rel=1e-5)
    assert scores["ridge on all columns"]["mae"] < 1e-3


def test_classes_are_compared_with_the_most_common_one_and_a_ridge():
    spec = spec_of(task="classification", classes=3)
    fields = {"features": Field((4,), np.dtype("f4")), "targets": Field((), np.dtype("u1"))}
    task = TabularTask.for_run(spec, fields)
    rows = torch.randn(400, 4, generator=torch.Generator().manual_seed(5))
    targets = rows[:, 0].gt(-0.5).to(torch.uint8)  # no sample is of class 2
    scores = scores_of_baselines(task, rows, targets)
    share = targets[300:].double().mean().item()
    assert scores["most common class"]["accuracy"] == pytest.approx(share)
    ridge = scores["ridge on all columns"]
    assert ridge["accuracy"] > 0.85
    assert ridge["loss"] < scores["most common class"]["loss"]


def test_a_table_of_many_columns_has_no_ridge():
    columns = MOST_COLUMNS + 1
    fields = {"features": Field((columns,), np.dtype("f4")), "targets": Field((), np.dtype("f4"))}
    batch = Batch({"features": torch.zeros(3, columns), "targets": torch.zeros(3)}, 3)
    task = TabularTask.for_run(spec_of(), fields)
    assert list(task.baselines(TrainingSamples(batch, None), None)) == ["training mean"]
