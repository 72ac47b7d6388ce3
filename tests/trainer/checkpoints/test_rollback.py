"""After a loss that was not finite: the weights from before it, and the data behind."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from app.lifecycle import Reason
from app.planning.rollback import Rollback, next_rollback
from tests.trainer.lab import (
    BUILDING_POLLS,
    Killed,
    Lab,
    Outcome,
    StopAtPoll,
    merged,
    own_checkpoints,
    read_events,
    start_trainer,
    write_waves,
)
from tests.trainer.recipes.test_lanes import ONE_BY_ONE, TOUCHING, write_series
from worker.trainer.errors import Diverged
from worker.trainer.step import TrainingStep

# 21 steps in an epoch; what is in a sample is seen as it lies in the file.
SHORT: dict[str, Any] = {
    "data": {"standardize": {"inputs": False}},
    "training": {
        "epochs": 1,
        "batch_size": 2,
        "gradient_accumulation_steps": 1,
        "log_every_steps": 2,
    },
    "checkpoint": {"every_steps": 4, "keep_best": 0},
    "evaluation": {"every_steps": 7},
}
EMA = {"averaging": {"kind": "ema", "decay": 0.7, "ramp": True}}


class Spy:
    """What is trained on: the targets of each batch, and the weights before it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.batches: list[Tensor] = []
        self.first_weights: dict[str, Tensor] = {}
        accumulate = TrainingStep.accumulate

        def spied(step: TrainingStep, batch: Any, share: float) -> None:
            if not self.batches:
                weights = step.model.state_dict()
                self.first_weights = {name: value.clone() for name, value in weights.items()}
            self.batches.append(batch.arrays["targets"].clone())
            accumulate(step, batch, share)

        patch.setattr(TrainingStep, "accumulate", spied)

    def take(self) -> list[Tensor]:
        """Those since the last call."""
        taken, self.batches = self.batches, []
        return taken


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def spoil(lab: Lab, batch: Tensor) -> None:
    """Write NaN into the inputs of a sample of this batch."""
    with h5py.File(lab.data, "r+") as file:
        (row,) = np.flatnonzero((file["targets"][:] == batch[0].numpy()).all(axis=1))
        file["features"][row, 3, 1] = np.nan


def fail(lab: Lab, run_dir: Path, patch: dict[str, Any]) -> Rollback:
    """Train until the loss is not finite, and what the agent makes of it."""
    with pytest.raises(Diverged) as caught:
        lab.run(run_dir, patch)
    assert caught.value.reached is not None
    found = next_rollback(None, newest_step(run_dir), **caught.value.reached)
    assert isinstance(found, Rollback)
    return found


def newest_step(run_dir: Path) -> int:
    return int(own_checkpoints(run_dir)[0]["path"].rpartition("-")[2])


def weights_of(outcome: Outcome, step: int | None = None) -> dict[str, Tensor]:
    return safetensors.torch.load_file(outcome.checkpoint(step) / "model.safetensors")


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_goes_on_with_the_weights_from_before_and_the_data_behind(lab: Lab, spy: Spy) -> None:
    lab.run(patch=SHORT)
    straight = spy.take()
    spoil(lab, straight[9])
    run_dir = lab.new_run()
    rollback = fail(lab, run_dir, SHORT)
    assert rollback == Rollback(1, from_step=8, step=10, epoch=0, position=20)
    assert len(spy.take()) == 10
    before = Outcome(run_dir / "attempt-1", run_dir)
    outcome = lab.run(run_dir, SHORT, rollback=rollback)
    assert_equal(spy.first_weights, weights_of(before, 8))
    again = spy.take()
    assert len(again) == 11
    assert all(torch.equal(one, two) for one, two in zip(again, straight[10:], strict=True))
    (told,) = outcome.of_kind("rollback")
    assert {name: told[name] for name in told if name not in ("t", "seq", "kind")} == {
        "number": 1, "from_step": 8, "step": 10, "epoch": 1, "position": 20, "steps": 2,
        "samples": 4,
    }  # fmt: skip
    assert [event["step"] for event in outcome.of_kind("restored")] == [8]
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed
    assert "Trained 21 of 21 steps, of which 2 were left out" in outcome.end.message
    manifest = json.loads((outcome.checkpoint() / "manifest.json").read_bytes())
    assert manifest["state"]["left_out_steps"] == 2
    steps = [int(row[0]) for row in outcome.rows if row[2] == "train"]
    assert steps == [2, 4, 6, 7, 8, 12, 14, 16, 18, 20, 21]


@pytest.mark.parametrize("more", [{}, EMA], ids=["plain", "averaged"])
def test_what_is_interrupted_after_it_ends_as_if_it_had_not_been(
    lab: Lab, spy: Spy, more: dict[str, Any]
) -> None:
    """And steps that were left out enter no average."""
    patch = merged(SHORT, more)
    lab.run(patch=patch)
    spoil(lab, spy.take()[9])
    run_dir, stop = lab.new_run(), StopAtPoll()
    rollback = fail(lab, run_dir, patch)
    straight = lab.execute(lab.prepare(run_dir, patch, rollback=rollback), stop)
    if more:
        manifest = json.loads((straight.checkpoint() / "manifest.json").read_bytes())
        assert manifest["average"] == {"count": 21 - 2, "step": 21, "statistics_due": False}
    for polls in range(BUILDING_POLLS, stop.polls, 4):
        again = lab.new_run()
        assert fail(lab, again, patch) == rollback
        try:
            lab.run(again, patch, rollback=rollback, stop=StopAtPoll(polls, kill=polls % 8 == 1))
        except Killed:
            assert polls % 8 == 1
        resumed = lab.run(again, patch, rollback=rollback)
        assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
        assert resumed.result == straight.result


def test_past_the_end_of_an_epoch(lab: Lab, spy: Spy) -> None:
    """What lies beyond is told of: the mean of an epoch that was left in the middle is not."""
    patch = merged(
        SHORT,
        {
            "training": {"epochs": 2, "batch_size": 6, "log_every_steps": 100},
            "evaluation": {"every_steps": None, "every_epochs": None},
        },
    )
    lab.run(patch=patch)
    straight = spy.take()
    spoil(lab, straight[5])  # the last checkpoint is of step 4, the next one is refused
    run_dir = lab.new_run()
    rollback = fail(lab, run_dir, patch)
    assert rollback.from_step == 4
    assert rollback.step >= 8
    assert rollback.epoch == 1
    spy.take()
    write_waves(lab.data)
    outcome = lab.run(run_dir, patch, rollback=rollback)
    left = straight[rollback.step :]
    assert all(torch.equal(one, two) for one, two in zip(spy.take(), left, strict=True))
    (epoch,) = outcome.of_kind("epoch")
    assert epoch["epoch"] == 2
    assert np.isfinite(epoch["train_loss"])
    (told,) = outcome.of_kind("rollback")
    assert told["samples"] == 6 * (rollback.step - 4)


def test_past_the_last_step_it_ends_with_the_weights_that_it_has(lab: Lab, spy: Spy) -> None:
    lab.run(patch=SHORT)
    spoil(lab, spy.take()[20])
    run_dir = lab.new_run()
    rollback = fail(lab, run_dir, SHORT)
    assert (rollback.from_step, rollback.step) == (20, 21)
    spy.take()
    outcome = lab.run(run_dir, SHORT, rollback=rollback)
    assert spy.take() == []
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed
    assert outcome.result["test"] is not None
    before = Outcome(run_dir / "attempt-1", run_dir)
    assert_equal(weights_of(outcome, 21), weights_of(before, 20))


def test_what_one_batch_carries_to_the_next_ends_where_data_was_left_out(lab: Lab) -> None:
    """The windows repeat from the seventh on, so its loss is that of the first if it is so."""
    write_series(lab, TOUCHING)
    patch = merged(ONE_BY_ONE, {"checkpoint": {"every_steps": 3}})
    straight = [row[3] for row in lab.run(patch=patch).rows]
    run_dir = lab.new_run()
    lab.run(run_dir, patch, stop=StopAtPoll(BUILDING_POLLS + 3))
    done = newest_step(run_dir)
    assert 0 < done < 6
    outcome = lab.run(run_dir, patch, rollback=Rollback(1, done, 6, 0, 6))
    losses = {row[0]: row[3] for row in outcome.rows}
    assert losses["7"] == straight[0] != straight[6]


def test_the_trainer_says_how_far_it_was(lab: Lab, spy: Spy) -> None:
    lab.run(patch=SHORT)
    spoil(lab, spy.take()[9])
    folder = lab.prepare(patch=SHORT)
    assert start_trainer(folder).wait(timeout=120) == 1
    end = read_events(folder)[-1]
    assert (end["kind"], end["reason"]) == ("end", "nonfinite")
    assert end["nonfinite"] == {
        "what": "The training loss became nan at or before step 10; checkpoints hold only finite "
        "weights.",
        "step": 10,
        "epoch": 0,
        "position": 20,
    }
    assert end["message"].startswith(end["nonfinite"]["what"])
