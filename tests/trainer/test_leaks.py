"""Host memory that grows from epoch to epoch is told, once, with the number."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from app.recipes.sequence import Sequence
from app.spec.data import Data
from app.spec.recipe import Array
from app.spec.run import RunSpec
from tests.trainer.lab import Lab
from worker.trainer.recipes.base import Batch, Begin, Samples
from worker.trainer.recipes.sequence import SequenceTask

MORE, LESS = 30_000_000, 22_500_000  # float32 numbers: 120 MB and 90 MB


class Leaking(SequenceTask):
    """Keeps so many numbers of every epoch."""

    numbers = MORE
    kept: list[Tensor]

    def begin(self, kind: Begin, model: nn.Module) -> None:
        super().begin(kind, model)
        if kind == "epoch":
            self.kept = [*getattr(self, "kept", []), torch.ones(self.numbers)]

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        assert self.kept
        return super().loss(model, batch)


class Frugal(Leaking):
    numbers = LESS


@pytest.mark.parametrize(("task", "told"), [(Leaking, 1), (Frugal, 0)])
def test_memory_that_grows_with_every_epoch_is_told_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, task: type[Leaking], told: int
) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: task)
    outcome = lab.run(patch={"training": {"epochs": 6}})
    found = [one for one in outcome.of_kind("warning") if one["code"] == "memory_grows"]
    assert len(found) == told
    for one in found:
        grown = re.search(r"grown by (\d+) MB an epoch over the last 3", one["message"])
        assert grown is not None
        assert 110 <= int(grown[1]) <= 140


def test_three_epochs_are_too_few_to_tell(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fills what a training needs, and two more may be chance."""
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: Leaking)
    outcome = lab.run(patch={"training": {"epochs": 3}})
    assert not [one for one in outcome.of_kind("warning") if one["code"] == "memory_grows"]


class Growing(Dataset[Mapping[str, Any]]):
    """Keeps so many numbers whenever the first sample is read, which is once an epoch."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.kept: list[np.ndarray[Any, Any]] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        if number == 0:
            self.kept.append(np.ones(MORE, np.float32))
        return self.samples[number]


class OfGrowing(SequenceTask):
    @classmethod
    def dataset(cls, spec: RunSpec, samples: Samples) -> Dataset[Mapping[str, Any]]:
        return Growing(samples)


def as_in_the_file(
    recipe: Sequence, data: Data, arrays: Mapping[str, Array]
) -> Mapping[str, Array]:
    return {name: arrays[name] for name in (*data.inputs, *data.targets)}


@pytest.mark.minutes
def test_growth_in_a_process_of_the_loader_is_told_as_such(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: OfGrowing)
    monkeypatch.setattr(Sequence, "dataset_arrays", as_in_the_file)
    loader = {"kind": "dataloader", "num_workers": 1, "persistent_workers": True}
    outcome = lab.run(patch={"data": {"loader": loader}, "training": {"epochs": 5}})
    (told,) = [
        one["message"] for one in outcome.of_kind("warning") if one["code"] == "memory_grows"
    ]
    parts = re.search(r"\((-?\d+) MB of it in the trainer, (\d+) MB in its loader's", told)
    assert parts is not None, told
    assert abs(int(parts[1])) < 20
    assert 110 <= int(parts[2]) <= 140
    assert "look in the dataset's __getitem__" in told
