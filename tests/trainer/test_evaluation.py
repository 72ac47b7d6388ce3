"""When the validation part is looked at, what is best, and when training ends early."""

import json
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from app.lifecycle import Reason
from tests.trainer.lab import Lab, Outcome
from worker.trainer.errors import Diverged, SpecMismatch, TrainerError
from worker.trainer.step import TrainingStep


def evaluated_steps(outcome: Outcome) -> list[int]:
    return [int(step) for step, _, split, _ in outcome.rows if split == "validation"]


@pytest.mark.parametrize(
    ("evaluation", "steps"),
    [
        ({"every_epochs": 1, "every_steps": None}, [3, 6, 9]),
        ({"every_epochs": 2, "every_steps": None}, [6, 9]),
        ({"every_epochs": None, "every_steps": 4}, [4, 8, 9]),
        ({"every_epochs": 1, "every_steps": 4}, [3, 4, 6, 8, 9]),
        ({"every_epochs": None, "every_steps": None}, [9]),
    ],
)
def test_evaluations_come_by_epochs_by_steps_and_at_the_end(
    lab: Lab, evaluation: dict[str, Any], steps: list[int]
) -> None:
    assert evaluated_steps(lab.run(patch={"evaluation": evaluation})) == steps


def test_an_evaluation_weighs_every_sample_the_same(lab: Lab) -> None:
    """12 samples in batches of 5, 5 and 2 give what one batch of 12 gives."""
    in_three = lab.run(patch={"evaluation": {"batch_size": 5}})
    at_once = lab.run(patch={"evaluation": {"batch_size": 12}})
    for first, second in zip(in_three.of_kind("epoch"), at_once.of_kind("epoch"), strict=True):
        for name in ("val_loss", "val_mae", "val_mse", "val_rmse"):
            assert first[name] == pytest.approx(second[name], rel=1e-6)


def test_evaluating_more_often_does_not_change_the_training(lab: Lab) -> None:
    often = lab.run(patch={"evaluation": {"every_steps": 1}})
    seldom = lab.run(patch={"evaluation": {"every_epochs": None, "every_steps": None}})
    assert often.weights == seldom.weights


def test_max_batches_limits_an_evaluation(lab: Lab) -> None:
    outcome = lab.run(patch={"evaluation": {"max_batches": 1, "every_steps": None}})
    totals = outcome.of_kind("progress")[-1]["totals"]
    assert totals["eval_iterations"] == 3 + 2  # three evaluations, and the whole test part
    assert totals["eval_samples"] == 3 * 5 + 6


def test_early_stopping_ends_after_its_patience(lab: Lab) -> None:
    patch = {
        "early_stopping": {"monitor": "val_mae", "patience": 2, "min_delta": 1e9},
        "training": {"epochs": 20},
        "evaluation": {"every_steps": None},
    }
    outcome = lab.run(patch=patch)
    assert outcome.end is not None
    assert outcome.end.reason is Reason.early_stopped
    assert outcome.end.step == 9  # the first evaluation sets the mark, two more do not beat it
    assert "val_mae had not improved for 2 evaluations" in outcome.end.message


def test_a_metric_that_is_to_grow_counts_the_other_way(lab: Lab) -> None:
    outcome = lab.run(patch={"checkpoint": {"mode": "max", "monitor": "val_mse"}})
    assert outcome.end is not None
    values = [
        e["values"]["val_mse"] for e in outcome.of_kind("metrics") if "val_mse" in e["values"]
    ]
    assert outcome.result["best"]["val_mse"] == max(values)


def test_the_test_part_is_measured_with_the_best_weights(lab: Lab) -> None:
    """The worst evaluation is called best here, so best and last are not the same."""
    patch = {"checkpoint": {"mode": "max"}, "evaluation": {"every_steps": 1}}
    outcome = lab.run(patch=patch)
    assert outcome.end is not None
    best = outcome.result["best"]["step"]
    assert best < 9
    assert outcome.result["test"]["step"] == best
    restored = [{"path": str(outcome.checkpoint(best)), "carry": "full", "own": False}]
    alone = lab.run(patch=patch | {"training": {"max_steps": best}}, restore=restored)
    assert alone.result["test"] == outcome.result["test"]
    assert outcome.rows[-1][2] == "test"


def test_without_kept_best_weights_the_last_are_tested_and_that_is_said(lab: Lab) -> None:
    patch = {
        "checkpoint": {"mode": "max", "keep_best": 0, "every_steps": None},
        "evaluation": {"every_steps": 1},
    }
    outcome = lab.run(patch=patch)
    assert outcome.result["test"]["step"] == 9
    assert [event["code"] for event in outcome.of_kind("warning")] == ["best_weights_gone"]


def test_without_a_validation_part_a_run_trains_and_says_nothing_of_it(lab: Lab) -> None:
    patch = {
        "data": {"split": {"validation_fraction": 0.0, "test_fraction": 0.0}},
        "early_stopping": None,
    }
    outcome = lab.run(patch=patch)
    assert outcome.result["best"] is None
    assert outcome.result["test"] is None
    assert {row[2] for row in outcome.rows} == {"train"}


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ({"evaluation": {"metrics": []}, "checkpoint": {"monitor": "val_mae"}}, "val_loss. Add it"),
        ({"early_stopping": {"monitor": "val_r2"}}, "early_stopping.monitor is val_r2"),
        ({"data": {"split": {"validation_fraction": 0.0}}}, "needs a validation part"),
    ],
)
def test_a_monitor_that_nothing_gives_is_refused(
    lab: Lab, patch: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecMismatch, match=told):
        lab.run(patch=patch)


def test_the_time_limit_ends_a_run_with_an_evaluation_and_a_checkpoint(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "worker.trainer.trainer.Trainer.trained_seconds", lambda t: t.state.step / 2
    )
    outcome = lab.run(patch={"policy": {"max_duration_seconds": 2.4}})
    assert outcome.end is not None
    assert outcome.end.reason is Reason.max_duration
    assert outcome.end.step == 5
    assert evaluated_steps(outcome)[-1] == 5
    assert outcome.checkpoint().name == "step-5"


def test_the_time_of_earlier_attempts_counts(lab: Lab) -> None:
    run_dir = lab.new_run()
    first = lab.run(run_dir, patch={"training": {"max_steps": 3}})
    second = lab.run(run_dir)
    assert second.end is not None
    seconds = [
        json.loads((o.checkpoint() / "manifest.json").read_text())["state"]["trained_seconds"]
        for o in (first, second)
    ]
    assert seconds[1] > seconds[0] > 0


def test_a_loss_that_is_not_finite_ends_the_run_and_saves_no_such_weights(lab: Lab) -> None:
    patch = {
        "optimizer": {"kind": "sgd", "lr": 10.0, "momentum": 0.99},
        "recipe": {"loss": "mse"},
        "training": {"clip_grad_norm": None, "epochs": 400},
        "schedule": {"kind": "constant"},
        "data": {"standardize": {"targets": False, "inputs": False}},
        "evaluation": {"every_epochs": None, "every_steps": None},
    }
    with pytest.raises(TrainerError, match=r"not finite|became") as caught:
        lab.run(patch=patch)
    assert caught.value.reason is Reason.nonfinite
    assert "optimizer.lr" in caught.value.message


def test_nan_in_test_data_leaves_the_rest_of_the_result(lab: Lab) -> None:
    with h5py.File(lab.data, "r+") as file:
        file["features"][58, 3, 1] = np.nan
    done = lab.run()
    assert done.result["test"] is None
    assert done.result["best"] is not None
    (warning,) = [one for one in done.of_kind("warning") if one["code"] == "test_not_scored"]
    assert warning["message"].startswith("The loss while testing became nan")
    assert "the weights are finite: that part of the data (features" in warning["message"]


def test_nan_in_validation_data_is_not_blamed_on_the_learning_rate(lab: Lab) -> None:
    with h5py.File(lab.data, "r+") as file:
        file["features"][50, 3, 1] = np.nan
    with pytest.raises(TrainerError, match="loss while evaluating became nan") as caught:
        lab.run()
    assert caught.value.reason is Reason.nonfinite
    assert not isinstance(caught.value, Diverged)  # going back would not help
    assert "the weights are finite: that part of the data (features" in caught.value.message
    assert "optimizer.lr" not in caught.value.message


def test_weights_that_are_not_finite_are_told_from_data_that_is_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights break in the step before an evaluation, after the last finite loss."""

    def broken(self: TrainingStep, learning_rate: float) -> None:
        with torch.no_grad():
            next(self.model.parameters()).fill_(torch.nan)

    monkeypatch.setattr(TrainingStep, "apply", broken)
    patch = {"training": {"log_every_steps": 50}, "evaluation": {"every_steps": 1}}
    with pytest.raises(TrainerError, match=r"loss while evaluating became nan") as caught:
        lab.run(patch=patch)
    assert "optimizer.lr" in caught.value.message
