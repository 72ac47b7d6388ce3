"""The recipe sequence with the loss quantile: shapes, metrics, baselines, and what it refuses."""

import json
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss

from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, Lab, merged
from tests.trainer.recipes.test_baselines import arrays_of, by_name, name_features
from tests.trainer.recipes.test_sequence import task_for
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field
from worker.trainer.data.source import arrays_of as arrays_of_fields
from worker.trainer.recipes.base import PastOfTarget, TrainingSamples
from worker.trainer.recipes.sequence import SequenceTask

LEVELS = [0.1, 0.25, 0.6, 0.9]
QUANTILE = {"recipe": {"loss": "quantile", "quantiles": LEVELS}}
METRICS = ("mae", "mse", "pinball", "coverage")
MEASURED = merged(QUANTILE, {"evaluation": {"metrics": list(METRICS)}})


@pytest.mark.parametrize("target", [(), (4,), (4, 2)])
@pytest.mark.parametrize("inputs", [["features"], ["features", "slow"]])
def test_forecasts_have_a_last_axis_of_ascending_levels(
    target: tuple[int, ...], inputs: list[str]
) -> None:
    task = task_for(merged(QUANTILE, {"data": {"inputs": inputs}}), targets=target, slow=(6, 2))
    torch.manual_seed(0)
    statistics = {"targets": (torch.tensor(20.0), torch.tensor(5.0))}
    model = task.build_model(statistics, {})
    shapes = [(5, 12, 3), (5, 6, 2)][: len(inputs)]
    forecasts = model(*(torch.randn(shape) for shape in shapes))
    assert forecasts.shape == (5, *target, 4)
    assert (forecasts.diff(dim=-1) >= 0).all()
    arrays = arrays_of_fields(task.fields)
    assert task.recipe.num_parameters(task.spec.data, arrays) == sum(
        one.numel() for one in model.parameters()
    )


def test_metrics_are_scikit_learns_in_the_users_units() -> None:
    task = task_for(MEASURED)
    torch.manual_seed(0)
    model = task.build_model({"targets": (torch.tensor(20.0), torch.tensor(5.0))}, {}).eval()
    targets = 20 + 5 * torch.randn(32, 4)
    batch = Batch({"features": torch.randn(32, 12, 3), "targets": targets}, 32)
    sums = {name: total.item() for name, total in task.measure(model, batch).items()}
    scores = task.scores(sums, 32)
    with torch.no_grad():
        forecasts = model(batch.arrays["features"]).flatten(0, 1).double().numpy()
    actual = targets.flatten().double().numpy()
    each = [mean_pinball_loss(actual, forecasts[:, n], alpha=q) for n, q in enumerate(LEVELS)]
    assert scores["pinball"] == pytest.approx(np.mean(each))
    assert scores["loss"] == pytest.approx(np.mean(each) / 5, rel=1e-5)
    assert scores["loss"] == pytest.approx(task.loss(model, batch)["loss"].item())
    assert scores["mae"] == pytest.approx(np.abs(forecasts[:, 2] - actual).mean())  # of level 0.6
    inside = (forecasts[:, 0] <= actual) & (actual <= forecasts[:, -1])
    assert scores["coverage"] == pytest.approx(inside.mean())


def write_uneven_waves(lab: Lab, samples: int = 900) -> None:
    """The last value says how far the target lies from 0, and how much it spreads."""
    random = np.random.default_rng(0)
    wave = random.normal(size=(samples, 5))
    noise = random.normal(size=samples) * (0.05 + 0.5 * (wave[:, 3] > 0))
    wave[:, 4] = np.abs(wave[:, 3]) + noise
    with h5py.File(lab.data, "w") as file:
        file["features"] = wave[:, :4, None].astype(np.float32)
        file["targets"] = wave[:, 4].astype(np.float32)
    name_features(lab, features=["wave"])


@pytest.mark.parametrize("past", [{}, {"residual": "last", "highway": 4}])
def test_a_run_beats_the_best_baseline_where_the_spread_follows_from_the_past(
    lab: Lab, past: dict[str, Any]
) -> None:
    write_uneven_waves(lab)
    patch = {
        "recipe": {
            "loss": "quantile", "hidden_size": 16, "num_layers": 1, "patch": 1, "dropout": 0.0,
            **past,
        },
        "training": {"epochs": 12, "batch_size": 32, "gradient_accumulation_steps": 1},
        "evaluation": {"every_steps": None, "every_epochs": 1, "metrics": list(METRICS)},
        "checkpoint": {"every_steps": None},
    }  # fmt: skip
    result = lab.run(patch=patch).result
    assert "val_coverage" not in result["naive"]  # no baseline is the best by it
    for metric in ("test_pinball", "test_mae"):
        assert result["test"][metric] < 0.9 * result["naive"][metric]
    # Nominally 0.8. The test part has 90 samples, so chance alone moves it by 0.04.
    assert 0.6 < result["test"]["test_coverage"] < 0.95


def test_baselines_have_a_band_of_their_errors(lab: Lab) -> None:
    name_features(lab)
    patch: dict[str, Any] = merged(MEASURED, {"training": {"epochs": 1}})
    result = lab.run(patch=patch).result
    features, targets = arrays_of(lab, "features", "targets")
    errors = targets[:42] - features[:42, -1:, 0]
    offsets = np.quantile(errors, LEVELS, axis=0)
    forecasts = features[42:54, -1:, 0] + offsets[:, None]  # levels, samples, horizon
    scores = {metric: by_name(result, f"val_{metric}")["last value"] for metric in METRICS}
    each = [
        mean_pinball_loss(targets[42:54], one, alpha=level)
        for one, level in zip(forecasts, LEVELS, strict=True)
    ]
    assert scores["pinball"] == pytest.approx(np.mean(each))
    assert scores["mae"] == pytest.approx(np.abs(forecasts[2] - targets[42:54]).mean())
    inside = (forecasts[0] <= targets[42:54]) & (targets[42:54] <= forecasts[-1])
    assert scores["coverage"] == pytest.approx(inside.mean())


def test_a_run_resumes_to_the_bit(lab: Lab) -> None:
    straight = lab.run(patch=QUANTILE)
    manifest = json.loads((straight.checkpoint() / "manifest.json").read_text())
    assert manifest["recipe"]["levels"] == LEVELS
    stopped = [first for first, _ in lab.interrupted(straight, [8, 14], QUANTILE)]
    assert len(stopped) == 2


@pytest.mark.parametrize("targets", [(), (4,)])
def test_an_untrained_model_is_a_ridge_on_the_past_with_the_band_of_its_errors(
    targets: tuple[int, ...],
) -> None:
    recipe = QUANTILE["recipe"] | {"residual": "last", "highway": 6}
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, {"recipe": recipe})))
    floats = np.dtype("f4")
    fields = {
        "features": Field((12, 3), floats, target_feature=1),
        "targets": Field(targets, floats),
    }
    task = SequenceTask.for_run(spec, fields)
    random = torch.Generator().manual_seed(0)
    arrays = {
        "features": torch.randn(501, 12, 3, generator=random),
        "targets": 7 + torch.randn(501, *targets, generator=random),
    }
    *_, before, last = arrays["features"][..., 1].T
    arrays["targets"] += (2 * before - last).reshape(-1, *(1 for _ in targets))
    samples = TrainingSamples(Batch(arrays, 501), PastOfTarget("features", 1))
    model = task.build_model({}, {}).eval()
    with torch.no_grad():
        task.fit(model, samples)
        forecasts = model(arrays["features"])
    assert forecasts.shape == (501, *targets, 4)
    below = (arrays["targets"][..., None] <= forecasts).double().flatten(0, -2).mean(0)
    assert below == pytest.approx(torch.tensor(LEVELS), abs=0.01)
    # The noise has deviation 1, so the band of 0.1 to 0.9 is 2.56 wide.
    width = (forecasts[..., -1] - forecasts[..., 0]).mean().item()
    assert width == pytest.approx(2.56, abs=0.25)
