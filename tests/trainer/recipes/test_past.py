"""Forecasts that start from the target's own past: its last value, a linear map, its level."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, Lab, merged
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field, arrays_of
from worker.trainer.errors import SpecMismatch, TrainerError
from worker.trainer.recipes.base import TrainingSamples
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.recipes.sequence_model import Forecaster, normalized
from worker.trainer.tools.inspect import inspect

SHAPE, HORIZON, TARGET = (12, 3), 4, 1
MOMENTS = {
    "features": (torch.tensor([5.0, 20.0, 0.0]), torch.tensor([2.0, 4.0, 1.0])),
    "targets": (torch.tensor(21.0), torch.tensor(4.5)),
}


def task_of(
    recipe: dict[str, Any], *, feature: int | None = TARGET, targets: tuple[int, ...] = (HORIZON,)
) -> SequenceTask:
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, {"recipe": recipe})))
    floats = np.dtype("float32")
    fields = {
        "features": Field(SHAPE, floats, target_feature=feature),
        "targets": Field(targets, floats),
    }
    return SequenceTask.for_run(spec, fields)


def model_of(task: SequenceTask) -> Forecaster:
    model = task.build_model(MOMENTS, {})
    assert isinstance(model, Forecaster)
    return model.eval()


@pytest.fixture
def windows() -> Tensor:
    return torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(2)) * 3 + 20


@pytest.mark.parametrize("recipe", [{}, {"highway": 6}, {"highway": 6, "normalize": "window"}])
@pytest.mark.parametrize("targets", [(), (HORIZON,)])
def test_an_untrained_model_repeats_the_last_value(
    windows: Tensor, recipe: dict[str, Any], targets: tuple[int, ...]
) -> None:
    model = model_of(task_of({"residual": "last", **recipe}, targets=targets))
    last = windows[:, -1, TARGET].reshape(-1, *(1 for _ in targets))
    assert torch.equal(model(windows), last.expand(5, *targets))


def test_the_highway_is_a_linear_map_of_the_last_steps(windows: Tensor) -> None:
    """A weight of one on the value of six steps ago forecasts that value; other features count in
    standardized units.
    """
    model = model_of(task_of({"residual": "last", "highway": 6}))
    assert model.highway is not None
    assert model.highway.weight.shape == (HORIZON, 6 * SHAPE[1])
    weights = model.highway.weight.detach().view(HORIZON, 6, SHAPE[1])
    weights[2, 0, TARGET] = 1.0
    weights[3, 5, 0] = 2.0
    forecast, (means, stds) = model(windows), MOMENTS["features"]
    assert torch.allclose(forecast[:, 2], windows[:, 6, TARGET])
    assert torch.equal(forecast[:, 1], windows[:, -1, TARGET])
    other = (windows[:, -1, 0] - means[0]) / stds[0]
    expected = windows[:, -1, TARGET] + 2.0 * other * MOMENTS["targets"][1]
    assert torch.allclose(forecast[:, 3], expected)


def test_without_the_last_value_the_highway_reads_standardized_values(windows: Tensor) -> None:
    model = model_of(task_of({"highway": 6}))
    assert model.highway is not None
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    torch.nn.init.zeros_(model.highway.weight)
    model.highway.weight.detach().view(HORIZON, 6, SHAPE[1])[0, -1, TARGET] = 1.0
    forecast = model(windows)
    assert torch.allclose(forecast[:, 0], windows[:, -1, TARGET])
    assert torch.allclose(forecast[:, 1], MOMENTS["targets"][0].expand(5))


@pytest.mark.parametrize("residual", ["last", "none"])
def test_normalized_windows_carry_their_level_and_scale_to_the_forecast(
    windows: Tensor, residual: str
) -> None:
    recipe = {"residual": residual, "highway": 6, "normalize": "window"}
    model = model_of(task_of(recipe))
    torch.nn.init.normal_(model.head.weight)
    assert model.highway is not None
    torch.nn.init.normal_(model.highway.weight)
    forecast = model(windows)
    assert forecast.std() > 0.1
    moved = model(windows * 2.5 - 40)
    assert torch.allclose(moved, forecast * 2.5 - 40, rtol=1e-3, atol=1e-3)


def test_a_window_that_never_changes_is_forecast_to_stay(windows: Tensor) -> None:
    model = model_of(task_of({"normalize": "window"}))
    forecast = model(torch.full_like(windows, 17.0))
    assert torch.allclose(forecast, torch.full_like(forecast, 17.0), atol=0.1)


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_a_row_of_features_has_no_level_to_remove(shape: tuple[int, ...]) -> None:
    rows = torch.arange(6.0).view(2, *shape)
    assert torch.equal(normalized(rows), rows)


@pytest.mark.parametrize(
    ("recipe", "feature", "targets", "message"),
    [
        ({"residual": "last"}, None, (HORIZON,), "recipe.residual is last, and no file says"),
        ({"highway": 3}, None, (HORIZON,), "recipe.highway is 3, and no file says"),
        ({"normalize": "window"}, None, (HORIZON,), "recipe.normalize is window, and no file"),
        ({"residual": "last"}, 1, (HORIZON, 2), "recipe.residual is last, and no file says"),
        ({"highway": 13}, 1, (HORIZON,), "A highway of 13 time steps is longer than the window"),
    ],
)
def test_options_that_need_the_targets_past_are_refused_without_it(
    recipe: dict[str, Any], feature: int | None, targets: tuple[int, ...], message: str
) -> None:
    with pytest.raises(SpecMismatch, match=message):
        task_of(recipe, feature=feature, targets=targets)


@pytest.mark.parametrize("recipe", [{}, {"residual": "last", "highway": 12}, {"highway": 5}])
def test_the_guard_counts_the_parameters_of_the_model(recipe: dict[str, Any]) -> None:
    task = task_of(recipe)
    counted = sum(one.numel() for one in task.build_model(MOMENTS, {}).parameters())
    data, arrays = task.spec.data, arrays_of(task.fields)
    assert task.recipe.num_parameters(data, arrays) == counted


def test_the_target_is_scaled_by_its_distance_from_the_last_value(lab: Lab) -> None:
    name_features(lab.data)
    weights = safetensors.torch.load(lab.run(patch={"recipe": {"residual": "last"}}).weights)
    with h5py.File(lab.data) as file:  # the training part is the first 42 of 60 samples
        features, targets = (file[name][:42].astype("f8") for name in ("features", "targets"))
    changes = targets - features[:, -1:, 1]
    assert weights["target_std"].item() == pytest.approx(np.sqrt((changes**2).mean()))
    assert weights["target_mean"].item() == 0.0


@pytest.mark.parametrize("normalize", ["none", "window"])
@pytest.mark.parametrize("loss", ["mae", "quantile"])
def test_the_highway_starts_at_a_ridge(loss: str, normalize: str) -> None:
    """The next values are the last one and linear in changes of the past and another feature."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(400, *SHAPE, generator=generator) * 3 + 20
    change = 0.5 * (inputs[:, -3, TARGET] - inputs[:, -1, TARGET])
    if normalize == "none":
        change = change + 0.3 * inputs[:, -2, 0]
    targets = (inputs[:, -1, TARGET] + change)[:, None].expand(-1, HORIZON)
    recipe = {"residual": "last", "highway": 8, "normalize": normalize, "loss": loss}
    task = task_of(recipe)
    model = model_of(task)
    batch = Batch({"features": inputs, "targets": targets}, len(inputs))
    with torch.no_grad():
        task.fit(model, TrainingSamples(batch, None))
    forecast = model(inputs)
    if loss == "quantile":
        assert (forecast[..., 2] - forecast[..., 0]).abs().max() < 0.01
        forecast = forecast[..., 1]
    assert (forecast - targets).abs().max() < 0.01


@pytest.mark.parametrize("loss", ["mae", "quantile"])
def test_a_ridge_on_the_target_alone_is_the_start_where_it_is_better(loss: str) -> None:
    """The next values are those of eleven steps ago, which the highway does not reach."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(400, *SHAPE, generator=generator) * 3 + 20
    targets = inputs[:, -11, TARGET, None].expand(-1, HORIZON)
    task = task_of({"residual": "last", "highway": 4, "loss": loss})
    model = model_of(task)
    with torch.no_grad():
        batch = Batch({"features": inputs, "targets": targets}, len(inputs))
        task.fit(model, TrainingSamples(batch, None))
    forecast = model(inputs)
    forecast = forecast[..., 1] if loss == "quantile" else forecast
    assert (forecast - targets).abs().max() < 0.01
    assert model.highway is not None
    assert not model.highway.weight.any(), "what the ridge says is not said twice"
    assert "autoregression" not in dict(model.named_parameters()), "it stays as it was fitted"


def test_samples_that_a_model_is_fitted_on_are_of_the_training_part(lab: Lab) -> None:
    name_features(lab.data)
    patch = {"recipe": {"residual": "last", "highway": 6}, "training": {"max_steps": 1}}
    weights = [lab.run(patch=patch).weights]
    with h5py.File(lab.data, "a") as file:
        file["targets"][42:] += 100
    weights.append(lab.run(patch=patch).weights)
    assert weights[0] == weights[1]


def name_features(path: Path, *, of_file: bool = True, features: Any = ("a", "wave", "b")) -> None:
    with h5py.File(path, "a") as file:
        holder = file if of_file else file["features"]
        holder.attrs["feature_names"] = list(features)
        file.attrs["target_name"] = "wave"


@pytest.mark.parametrize("of_file", [True, False])
def test_inspection_says_which_feature_is_the_targets_past(lab: Lab, of_file: bool) -> None:
    assert inspect(lab.data)["fields"]["features"]["target_feature"] is None
    name_features(lab.data, of_file=of_file)
    fields = inspect(lab.data)["fields"]
    assert fields["features"]["target_feature"] == 1
    assert fields["targets"]["target_feature"] is None


@pytest.mark.parametrize("features", [("wave",), ("a", "b", "c")])
def test_names_that_do_not_fit_the_features_say_nothing(lab: Lab, features: Any) -> None:
    name_features(lab.data, features=features)
    assert inspect(lab.data)["fields"]["features"]["target_feature"] is None


PAST = {"recipe": {"residual": "last", "highway": 6, "normalize": "window"}}


def test_weights_of_a_model_without_the_last_value_are_not_taken_for_one_with_it(lab: Lab) -> None:
    """The weights have the same names and shapes, and mean something else."""
    name_features(lab.data)
    without = lab.run(patch={"training": {"epochs": 1}})
    restore = [{"path": str(without.checkpoint()), "own": False, "carry": "weights"}]
    with pytest.raises(TrainerError, match="residual is none there and last in this run"):
        lab.run(patch={"recipe": {"residual": "last"}}, restore=restore)


def test_a_stopped_run_goes_on_to_the_same_bits(lab: Lab) -> None:
    name_features(lab.data)
    straight = lab.run(patch=PAST)
    assert len(list(lab.interrupted(straight, [9, 30], PAST))) == 2


def level_shifts(path: Path, samples: int = 1_200) -> None:
    """Windows of a level that climbs by each positive value of a driver, four steps later."""
    random = np.random.default_rng(5)
    driver = random.normal(size=samples + 16)
    changes = np.maximum(np.roll(driver, 4), 0) + 0.05 * random.normal(size=samples + 16)
    level = changes.cumsum()
    both = np.stack([level, driver], 1)
    starts = np.arange(4, samples)
    with h5py.File(path, "w") as file:
        file["features"] = np.stack([both[at : at + 12] for at in starts]).astype("f4")
        file["targets"] = np.stack([level[at + 12 : at + 16] for at in starts]).astype("f4")
        names = ["level", "driver"]
        file.attrs.update({"feature_names": names, "target_name": "level"})


def test_a_forecast_beats_every_baseline_where_levels_shift(lab: Lab) -> None:
    """No linear forecast tells positive values apart, and held-out levels are new."""
    level_shifts(lab.data)
    patch = {
        "recipe": {
            "encoder": "gru", "hidden_size": 32, "num_layers": 1, "patch": 4, "dropout": 0.0,
            "residual": "last", "highway": 12, "loss": "mse",
        },
        "training": {"epochs": 12, "batch_size": 32, "gradient_accumulation_steps": 1},
        "evaluation": {"every_steps": 60, "batch_size": 128, "metrics": ["mae"]},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "schedule": {"kind": "onecycle"},
        "checkpoint": {"every_seconds": None, "every_steps": 1_000},
    }  # fmt: skip
    result = lab.run(patch=patch).result
    assert result["best"]["val_mae"] < 0.7 * result["naive"]["val_mae"]
    assert result["test"]["test_mae"] < 0.7 * result["naive"]["test_mae"]
