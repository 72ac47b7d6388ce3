"""Time that baselines may take, those that are left out, and scores that are kept."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from app.datacache import entries
from app.lifecycle import Reason
from tests.trainer.lab import Lab, Outcome, merged
from tests.trainer.recipes.test_baselines import SHORT, by_name, name_features
from worker.trainer.recipes import fitting, sequence
from worker.trainer.recipes.base import Predictor, TrainingSamples
from worker.trainer.recipes.budget import Budget
from worker.trainer.recipes.fitting import Constant, ridge
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.report import baselines
from worker.trainer.stop import StopFlag

# 12 batches of the validation part, and 6 of the test part.
ONE_BY_ONE = merged(SHORT, {"evaluation": {"batch_size": 1}})


class Slow(nn.Module):
    """Takes `seconds` a batch, and asks the trainer to stop if it has its flag."""

    def __init__(self, seconds: float, stop: StopFlag | None = None) -> None:
        super().__init__()
        self.seconds, self.stop, self.calls = seconds, stop, 0

    def forward(self, first: Tensor, *_: Tensor) -> Tensor:
        self.calls += 1
        if self.stop is not None:
            self.stop.request()
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            continue
        return torch.zeros(len(first), 4)


def with_slow(monkeypatch: pytest.MonkeyPatch, slow: Slow) -> None:
    def both(*_: Any) -> Mapping[str, Predictor]:
        return {"zeros, slowly": slow, "zeros": Constant(torch.zeros(4))}

    monkeypatch.setattr(SequenceTask, "baselines", both)


def warning_of(outcome: Outcome) -> str:
    (warning,) = outcome.of_kind("warning")
    assert warning["code"] == "baselines_left_out"
    return str(warning["message"])


@pytest.fixture
def cache(lab: Lab) -> Path:
    folder = lab.root / "data-cache"
    lab.data_cache = {"folder": str(folder), "most_bytes": 2**20}
    return folder


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that baselines are fitted, and for each batch that they score."""
    calls, fit, score = [], SequenceTask.baselines, baselines.StandIn.forward

    def fitted(task: SequenceTask, samples: TrainingSamples, model: nn.Module) -> Any:
        calls.append("fit")
        return fit(task, samples, model)

    def scored(stand_in: Any, *inputs: Any) -> Any:
        calls.append("score")
        return score(stand_in, *inputs)

    monkeypatch.setattr(SequenceTask, "baselines", fitted)
    monkeypatch.setattr(baselines.StandIn, "forward", scored)
    return calls


def test_a_second_run_of_the_same_data_fits_and_scores_nothing(
    lab: Lab, cache: Path, fits: list[str]
) -> None:
    name_features(lab)
    first = lab.run(patch=SHORT).result
    assert fits.count("fit") == 1 < fits.count("score")
    assert [entry.content for entry in entries(cache)] == ["baselines"]
    fits.clear()
    other_model = {"recipe": {"hidden_size": 4}, "training": {"seed": 3}, "optimizer": {"lr": 0.1}}
    for patch in ({}, other_model):
        result = lab.run(patch=merged(SHORT, patch)).result
        assert (result["baselines"], result["naive"]) == (first["baselines"], first["naive"])
    assert fits == []


@pytest.mark.parametrize(
    "patch",
    [
        {"data": {"targets": ["others"]}},
        {"data": {"inputs": ["again"]}},
        {"data": {"split": {"validation_fraction": 0.3}}},
        {"data": {"standardize": {"targets": False}}},
        {"recipe": {"loss": "mse"}},
        {"evaluation": {"metrics": ["mae"]}},
        {"evaluation": {"max_batches": 1}},
    ],
    ids=["targets", "inputs", "split", "standardize", "loss", "metrics", "max_batches"],
)
def test_what_scores_depend_on_has_scores_of_its_own(
    lab: Lab, cache: Path, fits: list[str], patch: dict[str, Any]
) -> None:
    with h5py.File(lab.data, "a") as file:
        file["others"], file["again"] = -file["targets"][:], file["features"][:]
    patch = merged({"data": {"inputs": ["features"], "targets": ["targets"]}}, patch)
    lab.run(patch=merged(SHORT, {"data": {"inputs": ["features"], "targets": ["targets"]}}))
    lab.run(patch=merged(SHORT, patch))
    assert fits.count("fit") == 2
    assert len(entries(cache)) == 2


def test_other_data_is_scored_again(lab: Lab, cache: Path, fits: list[str]) -> None:
    lab.run(patch=SHORT)
    with h5py.File(lab.data, "a") as file:
        file["targets"][:] *= 2
    lab.run(patch=SHORT)
    assert fits.count("fit") == 2


def test_the_cheap_ones_are_kept_where_time_is_short(
    lab: Lab, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(0.1)
    with_slow(monkeypatch, slow)
    monkeypatch.setattr(baselines, "LEAST_SECONDS", 0.8)
    outcome = lab.run(patch=ONE_BY_ONE)
    assert set(by_name(outcome.result, "val_mae")) == {"zeros"}
    assert set(by_name(outcome.result, "test_mae")) == {"zeros"}
    assert slow.calls < 8
    assert "There was no time for: zeros, slowly." in warning_of(outcome)
    assert entries(cache) == [], "the next run may have time for it"


def test_waiting_counts_as_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(0.2)
    with_slow(monkeypatch, slow)
    monkeypatch.setattr(baselines, "LEAST_SECONDS", 0.1)
    outcome = lab.run(patch=ONE_BY_ONE)
    assert slow.calls == 1
    assert "zeros, slowly" in warning_of(outcome)


def test_a_stop_ends_them_between_two_batches(
    lab: Lab, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopFlag()
    slow = Slow(0.0, stop)
    with_slow(monkeypatch, slow)
    outcome = lab.execute(lab.prepare(patch=ONE_BY_ONE), stop)
    assert slow.calls == 1
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed
    assert "baselines" not in outcome.result
    assert "no time for: zeros, slowly, zeros." in warning_of(outcome)
    assert entries(cache) == []


def test_a_stop_ends_them_between_two_fits(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    name_features(lab)
    stop, fitted = StopFlag(), []

    def stopping(*given: Tensor) -> Any:
        stop.request()
        fitted.append(given)
        return ridge(*given)

    monkeypatch.setattr(sequence, "ridge", stopping)
    outcome = lab.execute(lab.prepare(patch=SHORT), stop)
    assert len(fitted) == 1
    assert "ridge on all features" in warning_of(outcome)


def test_a_ridge_that_is_too_large_is_named(
    lab: Lab, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_features(lab)
    monkeypatch.setattr(fitting, "MOST_OUTPUTS", 0)
    for _ in range(2):  # the second has the scores of the first
        outcome = lab.run(patch=SHORT)
        names = set(by_name(outcome.result, "val_mae"))
        assert "last value" in names
        assert not any(name.startswith("ridge") for name in names)
        message = warning_of(outcome)
        assert "Too large to be fitted in seconds: ridge on the last values, ridge on" in message
    assert len(entries(cache)) == 1


def test_kept_scores_that_are_damaged_are_measured_again(
    lab: Lab, cache: Path, fits: list[str]
) -> None:
    first = lab.run(patch=SHORT)
    (entry,) = entries(cache)
    (cache / entry.key / "tables.safetensors").write_bytes(np.zeros(9).tobytes())
    second = lab.run(patch=SHORT)
    assert second.result["baselines"] == first.result["baselines"]
    assert fits.count("fit") == 2


def test_time_by_the_clock_is_limited_too() -> None:
    """A disk or a GPU that is waited for takes no time of the processor."""
    budget = Budget(seconds=60.0, most_by_the_clock=0.01)
    time.sleep(0.02)
    assert not budget.has_time_for("a ridge")
    assert budget.too_late == ["a ridge"]
