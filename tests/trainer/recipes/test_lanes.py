"""Lanes of windows: what is carried ends where a series breaks."""

from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.trainer.lab import Lab, StopAtPoll, merged
from worker.trainer.data.lanes import lane_breaks
from worker.trainer.data.order import Order
from worker.trainer.data.split import Part
from worker.trainer.recipes.base import Statistics, Tables
from worker.trainer.recipes.sequence import SequenceTask


def write_series(lab: Lab, starts: list[int], names: tuple[str, ...] = ("features",)) -> None:
    """Windows that follow each other, which repeat from the seventh on, and where each begins."""
    random = np.random.default_rng(5)
    targets = np.tile(random.normal(size=(6, 4)), (2, 1)).astype(np.float32)
    with h5py.File(lab.data, "w") as file:
        file["targets"] = targets
        for name in names:
            half = random.normal(size=(6 * 12, 3)).astype(np.float32)
            series = np.zeros((max(starts) + 12, 3), np.float32)
            series[: len(half)] = half
            series[starts[6] : starts[6] + len(half)] = half
            group = file.create_group(name)
            group.attrs["window_length"] = 12
            group["series"], group["starts"] = series, np.array(starts, np.int64)


ONE_BY_ONE: dict[str, Any] = merged(
    {"data": {"loader": {"kind": "chunked", "shuffle": "lanes"}}},
    {
        "recipe": {"dropout": 0.0, "carry_hidden": True},
        "training": {
            "batch_size": 1,
            "gradient_accumulation_steps": 1,
            "log_every_steps": 1,
            "drop_last": True,
        },
        "optimizer": {"kind": "sgd", "lr": 1e-30, "momentum": 0.0},
        "data": {"split": {"validation_fraction": 0.0, "test_fraction": 0.0}},
        "evaluation": {"metrics": ["mae"]},
        "early_stopping": None,
    },
)
TOUCHING = list(range(0, 144, 12))
TWO_LANES = {"batch_size": 2, "epochs": 1}


@pytest.mark.parametrize("inputs", [["features"], ["features", "slow"]])
@pytest.mark.parametrize("moved", [0, 5, -72])
def test_what_is_carried_ends_where_the_series_breaks(
    lab: Lab, inputs: list[str], moved: int
) -> None:
    """The same windows behind a break give the same losses as at the beginning of an epoch."""
    starts = [start + moved * (number >= 6) for number, start in enumerate(TOUCHING)]
    write_series(lab, starts, tuple(inputs))
    outcome = lab.run(patch=merged(ONE_BY_ONE, {"data": {"inputs": inputs}}))
    applied = outcome.of_kind("applied")[0]["applied"]["data"]
    assert applied["lane_breaks"] == (moved != 0)
    losses = [row[2:] for row in outcome.rows][:12]
    assert (losses[6:] == losses[:6]) is (moved != 0)


def test_a_run_interrupted_behind_a_break_ends_as_one_that_was_not(lab: Lab) -> None:
    write_series(lab, [start + 5 * (start >= 72) for start in TOUCHING])
    patch, counting = merged(ONE_BY_ONE, {"optimizer": {"lr": 0.1}}), StopAtPoll()
    whole = lab.run(patch=patch, stop=counting)
    polls = range(counting.polls // 3, counting.polls, 7)
    assert len(list(lab.interrupted(whole, polls, patch))) >= 3


class NormedStates(SequenceTask):
    """Batch norm of the states, which notes them: those of the training, and those by which its
    statistics are updated.
    """

    trained: list[Tensor]
    updated: list[Tensor]

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        model = super().build_model(statistics, tables)
        norm = nn.BatchNorm1d(self.recipe.hidden_size)
        norm.register_forward_pre_hook(self._note)
        model.head = nn.Sequential(norm, model.get_submodule("head"))
        return model

    def _note(self, norm: nn.Module, given: tuple[Tensor]) -> None:
        if norm.training:
            kind = type(self)
            (kind.trained if torch.is_grad_enabled() else kind.updated).append(given[0].detach())


def test_statistics_are_of_states_that_end_where_the_series_breaks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they were while it trained, for its weights do not move."""
    NormedStates.trained, NormedStates.updated = [], []
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: NormedStates)
    write_series(lab, [start + 5 * (start >= 36) for start in TOUCHING])
    averaging = {"kind": "swa", "start_epoch": 1, "lr": 1e-30}
    lab.run(patch=merged(ONE_BY_ONE, {"training": TWO_LANES, "averaging": averaging}))
    assert len(NormedStates.trained) == 6
    torch.testing.assert_close(NormedStates.updated, NormedStates.trained)


def test_samples_that_are_no_neighbours_do_not_go_on() -> None:
    part = Part("waves", np.array([0, 1, 2, 4, 5, 6, 7, 8, 9]))
    found = lane_breaks(Order(9, 0, "lanes", lanes=2), part, 2, np.array([6]), torch.device("cpu"))
    assert found.marks.tolist() == [[False, False], [False, True], [False, False], [True, False]]
    assert [found.at(position) is None for position in range(0, 10, 2)] == [
        True, False, True, False, True,
    ]  # fmt: skip
