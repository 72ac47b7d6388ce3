"""Restarts: the whole state or the weights alone, from another run's checkpoint."""

import json

import pytest
import safetensors.torch
import torch

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll
from worker.trainer.checkpoint import Snapshot, load, publish
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
