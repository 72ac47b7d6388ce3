"""Batch norm's statistics of averaged weights, once a rollback has left out data that is NaN."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn

from app.lifecycle import Reason
from app.planning.rollback import Rollback, next_rollback
from tests.trainer.checkpoints.test_rollback import Spy, newest_step, spoil, weights_of
from tests.trainer.checkpoints.test_whole_state import Normed
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, merged, own_checkpoints
from tests.trainer.recipes.test_lanes import ONE_BY_ONE, TOUCHING, NormedStates, write_series
from tests.trainer.test_averaging import NormedTask
from worker.trainer.checkpoints.format import load
from worker.trainer.errors import Diverged

EPOCH_STEPS = 7
# What is in a sample is seen as it lies in the file; a rollback leaves out one step.
SWA: dict[str, Any] = {
    "averaging": {"kind": "swa", "start_epoch": 1, "lr": 0.02},
    "data": {"standardize": {"inputs": False, "targets": False}},
    "training": {
        "epochs": 2,
        "batch_size": 6,
        "gradient_accumulation_steps": 1,
        "log_every_steps": 1,
    },
    "evaluation": {"every_epochs": 1, "every_steps": None},
    "checkpoint": {"every_steps": 1},
}


@pytest.fixture(autouse=True)
def _normed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    NormedTask.shown = []
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: NormedTask)
    yield
    NormedTask.shown = []


def epochs_of(lab: Lab, monkeypatch: pytest.MonkeyPatch, patch: dict[str, Any]) -> list[Tensor]:
    """The targets of each batch that a whole training is of."""
    with monkeypatch.context() as context:
        spy = Spy(context)
        lab.run(patch=patch)
    NormedTask.shown = []
    return spy.take()


def inputs_of(lab: Lab, batches: list[Tensor]) -> list[Tensor]:
    with h5py.File(lab.data) as file:
        targets, features = file["targets"][:], file["features"][:]
    rows = [[np.flatnonzero((targets == one).all(axis=1))[0] for one in b.numpy()] for b in batches]
    return [torch.from_numpy(features[one]) for one in rows]


def another(before: Rollback | None, run_dir: Path, error: Diverged) -> Rollback:
    assert error.reached is not None
    found = next_rollback(before, newest_step(run_dir), **error.reached)
    assert isinstance(found, Rollback), found
    return found


def train_past(lab: Lab, run_dir: Path, polls: int | None = None) -> tuple[Outcome, int]:
    """To the end, rolled back as the agent does; `polls`: every other attempt is stopped there.
    Also how many of these stopped while statistics were updated behind what was left out.
    """
    rollback, stale, attempt = None, 0, 0
    while True:
        stop, attempt = StopAtPoll(None if attempt % 2 else polls), attempt + 1
        try:
            outcome = lab.run(run_dir, SWA, rollback=rollback, stop=stop)
        except Diverged as error:
            rollback = another(rollback, run_dir, error)
            continue
        assert outcome.end is not None
        if outcome.end.reason is Reason.completed:
            return outcome, stale
        newest = own_checkpoints(run_dir)
        due = newest and load(Path(newest[0]["path"]), ()).body["average"]["statistics_due"]
        stale += bool(due and rollback)


def assert_same_batches(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_they_are_of_what_was_not_left_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each epoch anew, to the last bit."""
    batches = epochs_of(lab, monkeypatch, SWA)
    spoil(lab, batches[2])
    outcome, _ = train_past(lab, lab.new_run())
    assert outcome.end is not None
    assert "of which 2 were left out" in outcome.end.message
    expected = [one for one in inputs_of(lab, batches) if bool(one.isfinite().all())]
    assert len(expected) == 2 * (EPOCH_STEPS - 1)
    assert_same_batches(NormedTask.shown, expected)
    found, model = weights_of(outcome), Normed(torch.zeros(3))
    model.load_state_dict(found)
    model.norm.reset_running_stats()
    update_bn(expected[EPOCH_STEPS - 1 :], model)
    assert all(torch.equal(found[name], one) for name, one in model.state_dict().items())


def test_a_run_that_is_stopped_meanwhile_ends_as_one_that_was_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(lab, epochs_of(lab, monkeypatch, SWA)[2])
    straight, _ = train_past(lab, lab.new_run())
    stale = 0
    for polls in range(BUILDING_POLLS + 1, BUILDING_POLLS + 2 * EPOCH_STEPS, 2):
        resumed, stopped_there = train_past(lab, lab.new_run(), polls)
        stale += stopped_there
        assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
        assert resumed.result == straight.result
    assert stale >= 2


@pytest.mark.parametrize(("step", "position"), [(14, 0), (17, 18)], ids=["whole", "and_more"])
def test_an_epoch_that_was_left_out_to_its_end_gives_none(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, step: int, position: int
) -> None:
    """Where they were due when it went on, they are of the epoch that had entered."""
    patch = merged(SWA, {"training": {"epochs": 3}})
    batches = inputs_of(lab, epochs_of(lab, monkeypatch, patch))

    class InThePass(StopAtPoll):
        @property
        def requested(self) -> bool:
            return len(NormedTask.shown) > 2

    run_dir = lab.new_run()
    first = lab.run(run_dir, patch, stop=InThePass())
    assert load(first.checkpoint(), ()).body["average"]["statistics_due"]
    NormedTask.shown = []
    outcome = lab.run(run_dir, patch, rollback=Rollback(1, EPOCH_STEPS, step, 2, position))
    of_first, of_last = NormedTask.shown[:EPOCH_STEPS], NormedTask.shown[EPOCH_STEPS:]
    assert_same_batches(of_first, batches[:EPOCH_STEPS])
    assert_same_batches(of_last, batches[step:])
    assert load(outcome.checkpoint(), ()).body["average"]["count"] == 2


def test_what_is_carried_ends_where_data_was_left_out(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights do not move, so the states are those of the training."""
    NormedStates.trained, NormedStates.updated = [], []
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: NormedStates)
    write_series(lab, TOUCHING)
    averaging = {"kind": "swa", "start_epoch": 1, "lr": 1e-30}
    training = {"batch_size": 2, "epochs": 1}
    patch = merged(ONE_BY_ONE, {"training": training, "averaging": averaging})
    run_dir = lab.new_run()
    lab.run(run_dir, patch, stop=StopAtPoll(BUILDING_POLLS + 1))
    done = newest_step(run_dir)
    assert len(NormedStates.trained) == done < 4
    lab.run(run_dir, patch, rollback=Rollback(1, done, 4, 0, 8))
    assert len(NormedStates.trained) == done + 2
    torch.testing.assert_close(NormedStates.updated, NormedStates.trained)
