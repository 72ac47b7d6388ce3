"""A recipe with everything that can change beside its parameters: all of it is saved and put back.

BatchNorm's running statistics, Python's and NumPy's random numbers, and a state of the task's own.
"""

import random
from collections.abc import Mapping

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from app.spec.run import RunSpec
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll
from worker.trainer.data.source import Field
from worker.trainer.recipes.base import Batch, Statistics, Tables
from worker.trainer.recipes.sequence import SequenceTask


class Normed(nn.Module):
    learns_statistics = True

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("input_mean", mean.float())
        self.register_buffer("target_std", torch.ones(()))
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(36, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        self.norm.train(self.training and self.learns_statistics)
        centred = inputs - self.get_buffer("input_mean")
        forecast: Tensor = self.head(self.norm(centred.transpose(1, 2)).flatten(1))
        return forecast


class DrawingTask(SequenceTask):
    """Weighs losses by random numbers of the host, and by how many it has seen."""

    data_buffers = ("input_mean", "target_std")

    def __init__(self, spec: RunSpec, fields: Mapping[str, Field]) -> None:
        super().__init__(spec, fields)
        self.seen = torch.zeros(())

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        return Normed(statistics["features"][0] if statistics else torch.zeros(3))

    def state_dict(self) -> dict[str, Tensor]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.seen = state["seen"]

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        self.seen = self.seen + 1
        weight = random.gauss(1, 0.1) + 0.1 * np.random.normal()
        loss = super().loss(model, batch)["loss"]
        return {"loss": loss * (weight + float(self.seen) / 10)}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        self.seen = self.seen + random.random() + np.random.random()
        return super().measure(model, batch)


@pytest.fixture(autouse=True)
def _drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: DrawingTask)


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_run_interrupted_anywhere_ends_as_one_that_was_not(lab: Lab, kill: bool) -> None:
    stop = StopAtPoll()
    straight, polls = lab.run(stop=stop), stop.polls
    assert lab.run().weights == straight.weights  # a seed gives all random numbers
    anywhere = range(BUILDING_POLLS + 1, polls, 2)
    for _, resumed in lab.interrupted(straight, anywhere, kill=kill):
        assert resumed.of_kind("applied")[0]["applied"]["exact_resume"] is True


def test_training_does_not_depend_on_how_often_it_is_evaluated(lab: Lab) -> None:
    often = lab.run(patch={"evaluation": {"every_steps": 1}})
    assert often.weights == lab.run().weights


def restarted(lab: Lab, parent: Outcome) -> dict[str, Tensor]:
    """What a restart begins with that carries weights and learns nothing; its data is another."""
    still = {
        "optimizer": {"lr": 1e-12, "weight_decay": 0.0},
        "training": {"max_steps": 1},
        "data": {"split": {"validation_fraction": 0.6}},
    }
    restore = [{"path": str(parent.checkpoint()), "carry": "weights", "own": False}]
    return safetensors.torch.load(lab.run(patch=still, restore=restore).weights)


def test_running_statistics_are_carried_with_the_weights_and_those_of_the_data_are_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = lab.run()
    monkeypatch.setattr(Normed, "learns_statistics", False)
    before, after = safetensors.torch.load(parent.weights), restarted(lab, parent)
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(before[name], after[name]), name
    assert not torch.equal(before["input_mean"], after["input_mean"])
