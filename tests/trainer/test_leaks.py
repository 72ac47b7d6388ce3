"""Host memory that grows from epoch to epoch is told, once, with the number."""

import re

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.lab import Lab
from worker.trainer.recipes.base import Batch, Begin
from worker.trainer.recipes.sequence import SequenceTask

MORE, LESS = 30_000_000, 2_000_000  # float32 numbers: 120 MB and 8 MB


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
