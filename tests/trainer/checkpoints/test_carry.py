"""Restarts: the whole state or the weights alone, from another run's checkpoint."""

import json
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, read_events
from worker.trainer.checkpoints.format import Snapshot, load, publish
from worker.trainer.checkpoints.matching import require_none
from worker.trainer.errors import TrainerError


def restore_from(parent: Outcome, step: int, carry: str) -> list[dict[str, object]]:
    return [{"path": str(parent.checkpoint(step)), "carry": carry, "own": False}]


def test_a_full_carry_goes_on_exactly_where_the_parent_stood(lab: Lab) -> None:
    parent = lab.run()
    child = lab.run(restore=restore_from(parent, 4, "full"))
    assert child.weights == parent.weights
    assert child.rows == [row for row in parent.rows if int(row[0]) > 4]
    assert child.result == parent.result
    assert child.of_kind("restored")[0]["own"] is False


@pytest.mark.parametrize(
    ("own", "reason"), [(True, Reason.max_duration), (False, Reason.completed)]
)
def test_a_resume_has_used_its_time_and_a_restart_has_it_before_it(
    lab: Lab, own: bool, reason: Reason
) -> None:
    parent = lab.run()
    snapshot = load(parent.checkpoint(4))
    state = {**snapshot.body["state"], "trained_seconds": 5_000.0}
    folder = lab.root / "old" / "1" / "attempt-1" / "checkpoints" / "step-4"
    folder.parent.parent.mkdir(parents=True)
    publish(Snapshot(snapshot.parts, {**snapshot.body, "state": state}), folder)
    outcome = lab.run(
        patch={"policy": {"max_duration_seconds": 4_000.0}},
        restore=[{"path": str(folder), "carry": "full", "own": own}],
    )
    assert outcome.end is not None
    assert outcome.end.reason is reason


def test_a_child_can_be_resumed_after_its_first_save(lab: Lab) -> None:
    parent = lab.run()
    run_dir = lab.new_run()
    restore = restore_from(parent, 4, "full")
    first = lab.run(run_dir, restore=restore, stop=StopAtPoll(BUILDING_POLLS + 8))
    assert first.checkpoint().parent.parent == first.folder
    resumed = lab.run(run_dir)
    assert resumed.weights == parent.weights
    assert resumed.rows == [row for row in parent.rows if int(row[0]) > 4]


def test_carried_weights_are_the_parents_and_everything_else_is_new(lab: Lab) -> None:
    parent = lab.run()
    patch = {"optimizer": {"lr": 1e-12, "weight_decay": 0.0}, "training": {"batch_size": 4}}
    child = lab.run(patch=patch, restore=restore_from(parent, 9, "weights"))
    assert child.end is not None
    assert child.end.step == 18
    before, after = safetensors.torch.load(parent.weights), safetensors.torch.load(child.weights)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor)
    state = json.loads((child.checkpoint(2) / "manifest.json").read_text())["state"]
    assert state["step"] == 2
    assert child.rows[0][:3] == ["2", "1", "train"]


def test_carried_weights_meet_the_statistics_of_the_new_data(lab: Lab) -> None:
    parent = lab.run()
    patch = {"data": {"split": {"validation_fraction": 0.6}}}
    child = lab.run(patch=patch, restore=restore_from(parent, 9, "weights"))
    before, after = safetensors.torch.load(parent.weights), safetensors.torch.load(child.weights)
    assert not torch.equal(before["input_mean"], after["input_mean"])


def test_weights_of_another_shape_are_refused_with_the_shapes(lab: Lab) -> None:
    parent = lab.run()
    with pytest.raises(TrainerError, match=r"head\.weight is|encoder\.weight_ih_l0 is") as caught:
        lab.run(patch={"recipe": {"hidden_size": 16}}, restore=restore_from(parent, 9, "weights"))
    assert caught.value.reason is Reason.carry_mismatch


def test_a_restart_by_another_monitor_compares_no_values_of_different_metrics(lab: Lab) -> None:
    """val_loss is below 1 here and val_mse above: by the parent's value no mse would be better."""
    parent = lab.run(patch={"early_stopping": {"patience": 2}})
    patch = {"monitor": "val_mse", "mode": "min"}
    child = lab.run(
        patch={"checkpoint": patch, "early_stopping": {"patience": 2, **patch}},
        restore=restore_from(parent, 4, "full"),
    )
    assert child.end is not None
    assert child.end.reason is Reason.completed
    seen = {
        e["step"]: e["values"]["val_mse"]
        for e in (*parent.of_kind("metrics"), *child.of_kind("metrics"))
        if "val_mse" in e["values"]
    }
    best = child.result["best"]
    assert best["val_mse"] == min(seen.values())
    assert best["val_mse"] == seen[best["step"]]
    (warning,) = child.of_kind("warning")
    assert warning["code"] == "monitor_changed"
    assert "patience" in warning["message"]


def test_a_restart_of_what_stopped_early_has_new_patience(lab: Lab) -> None:
    stopping = {"early_stopping": {"patience": 2, "min_delta": 1e9}}
    parent = lab.run(patch=stopping)
    assert parent.end is not None
    assert parent.end.reason is Reason.early_stopped
    stopped_at = parent.end.step
    assert stopped_at is not None
    child = lab.run(patch=stopping, restore=restore_from(parent, stopped_at, "full"))
    assert child.end is not None
    assert (child.end.step or 0) > stopped_at
    resumed = lab.run(parent.run_dir, patch=stopping)
    assert resumed.end is not None
    assert (resumed.end.reason, resumed.end.step) == (Reason.early_stopped, stopped_at)


def test_a_best_of_other_batches_is_dropped_and_that_is_said(lab: Lab) -> None:
    parent = lab.run()
    child = lab.run(
        patch={"evaluation": {"max_batches": 1}}, restore=restore_from(parent, 9, "full")
    )
    assert child.result["best"] is None
    (warning,) = child.of_kind("warning")
    assert "the best evaluation so far" in warning["message"]


def other_waves(lab: Lab, features: int, target: tuple[int, ...]) -> None:
    """The dataset, with so many features and targets of another shape."""
    random = np.random.default_rng(5)
    with h5py.File(lab.data, "w") as file:
        file["features"] = random.normal(size=(60, 12, features)).astype(np.float32)
        file["targets"] = random.normal(size=(60, *target)).astype(np.float32)


def mismatch(lab: Lab, parent: Outcome, carry: str, patch: dict[str, Any] | None = None) -> str:
    folder = lab.prepare(patch=patch, restore=restore_from(parent, 9, carry))
    with pytest.raises(TrainerError) as caught:
        lab.execute(folder)
    assert caught.value.reason is Reason.carry_mismatch
    assert "training" not in [e.get("phase") for e in read_events(folder)], "before step 1"
    return caught.value.message


@pytest.mark.parametrize("carry", ["full", "weights"])
def test_all_that_differs_is_listed(lab: Lab, carry: str) -> None:
    parent = lab.run()
    message = mismatch(lab, parent, carry, {"recipe": {"num_layers": 1, "hidden_size": 16}})
    for told in (
        "encoder.weight_ih_l0 is (32, 9) there and (64, 9) in this run",
        "encoder.weight_hh_l0 is (32, 8) there and (64, 16) in this run",
        "head.weight is (4, 8) there and (4, 16) in this run",
        "encoder.weight_ih_l1 is there and unknown to this run",
    ):
        assert told in message
    moments = "of the optimizer head.weight.exp_avg is (4, 8) there and (4, 16) in this run"
    assert (moments in message) is (carry == "full")
    more = mismatch(lab, lab.run(patch={"recipe": {"num_layers": 1}}), carry)
    assert "encoder.weight_ih_l1 is missing there" in more


@pytest.mark.parametrize("carry", ["full", "weights"])
def test_weights_that_would_fit_and_mean_something_else_are_refused(lab: Lab, carry: str) -> None:
    """Patches of 3 steps of 3 features have as many numbers as of 1 step of 9, and a target of
    4 as one of 2 x 2.
    """
    parent = lab.run()
    other_waves(lab, 3, (2, 2))
    message = mismatch(lab, parent, carry)
    assert "target_shape is [4] there and [2, 2] in this run" in message
    other_waves(lab, 9, (4,))
    message = mismatch(lab, parent, carry, {"recipe": {"patch": 1}})
    assert "num_features is 3 there and 9 in this run" in message
    assert "input_mean is (3,) there and (9,) in this run" in message


def test_another_optimizers_state_is_refused(lab: Lab) -> None:
    message = mismatch(
        lab, lab.run(), "full", {"optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0.9}}
    )
    assert "of the optimizer head.bias.momentum_buffer is missing there" in message
    assert "of the optimizer head.bias.exp_avg is there and unknown to this run" in message


def test_a_very_long_list_ends_and_the_log_has_all(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TrainerError, match=r"w39 .* and 60 more, which trainer.log lists\."):
        require_none(f"w{n} is missing there" for n in range(100))
    assert "w99 is missing there" in caplog.text
