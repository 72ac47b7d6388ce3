"""Samples that differ in length, trained on by the real trainer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from app.recipes.sequence import Sequence
from app.spec.run import RunSpec
from tests.trainer.lab import FEATURES, HORIZON, Lab, merged
from tests.trainer.test_numerics import train_losses
from worker.trainer.data.formats.ragged_files import write_ragged
from worker.trainer.data.source import Field, at_full_length, lengths_of
from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.base import Batch, Statistics, Tables, Task
from worker.trainer.recipes.sequence import SequenceTask

RAGGED: dict[str, Any] = {"data": {"inputs": ["events"]}}
LOADERS: dict[str, dict[str, Any]] = {
    "resident": {"kind": "chunked", "residency": "resident", "shuffle": "full"},
    "stream": {
        "kind": "chunked", "residency": "stream", "chunk_size": "1KiB", "shuffle": "full",
    },
    "dataloader": {"kind": "dataloader", "shuffle": "full"},
}  # fmt: skip


def add_events(path: Path, lengths: NDArray[np.int64]) -> None:
    """The first steps of each sample's features as a ragged array."""
    with h5py.File(path, "r+") as file:
        features = file["features"][:]
        events = [row[:length] for row, length in zip(features, lengths, strict=True)]
        write_ragged(file, "events", events)


@pytest.fixture
def short(lab: Lab) -> Lab:
    """Samples of 0 to 12 steps."""
    add_events(lab.data, np.random.default_rng(3).integers(0, 13, 60))
    return lab


def with_loader(kind: str, patch: dict[str, Any] | None = None) -> dict[str, Any]:
    return merged(merged(RAGGED, patch or {}), {"data": {"loader": LOADERS[kind]}})


@pytest.mark.parametrize("kind", LOADERS)
def test_samples_that_are_all_as_long_train_as_those_of_one_shape(lab: Lab, kind: str) -> None:
    add_events(lab.data, np.full(60, 12))
    ragged = lab.run(patch=with_loader(kind))
    dense = lab.run(patch={"data": {"loader": LOADERS["resident"]}})
    assert ragged.losses == dense.losses
    assert ragged.weights == dense.weights
    assert ragged.result == dense.result


@pytest.mark.parametrize("patch", [1, 3, 5])
def test_every_loader_trains_the_same(short: Lab, patch: int) -> None:
    each = [short.run(patch=with_loader(kind, {"recipe": {"patch": patch}})) for kind in LOADERS]
    assert {outcome.losses for outcome in each} == {each[0].losses}
    assert {outcome.weights for outcome in each} == {each[0].weights}
    assert each[0].result["best"]["val_loss"] < 1.2


@pytest.mark.parametrize("kind", LOADERS)
def test_a_run_that_was_stopped_anywhere_ends_as_one_that_was_not(short: Lab, kind: str) -> None:
    whole = short.run(patch=with_loader(kind))
    stopped, steps = short.in_stages(with_loader(kind), 11, 14, None)
    assert 0 < steps[0] < steps[1] < steps[2] == 9
    assert (stopped.losses, stopped.weights) == (whole.losses, whole.weights)


class TestTheModel:
    """Of the recipe sequence."""

    @staticmethod
    def model_of(patch: int, longest: int = 12) -> nn.Module:
        fields = {
            **at_full_length("events", Field((longest, FEATURES), np.dtype("float32"))),
            "targets": Field((HORIZON,), np.dtype("float32")),
        }
        recipe = {"kind": "sequence", "hidden_size": 8, "patch": patch}
        recipe |= {"residual": "none", "highway": 0}
        data = {"dataset": "waves", **RAGGED["data"]}
        spec = RunSpec.model_validate({"recipe": recipe, "data": data}, strict=False)
        torch.manual_seed(patch)
        mean, std = torch.full((FEATURES,), 0.5), torch.full((FEATURES,), 2.0)
        return SequenceTask.for_run(spec, fields).build_model({"events": (mean, std)}, {}).eval()

    @pytest.mark.parametrize("patch", [1, 2, 5])
    def test_what_lies_behind_the_end_of_a_sample_has_no_part_in_its_forecast(
        self, patch: int
    ) -> None:
        model = self.model_of(patch)
        lengths = torch.arange(13)
        inputs = torch.randn(13, 12, FEATURES)
        inside = torch.arange(12) < lengths[:, None]
        zeros = model(inputs.where(inside[..., None], 0.0), lengths)
        others = model(inputs.where(inside[..., None], torch.nan), lengths)
        assert torch.equal(zeros, others)
        for length in range(1, 13):  # and is that of the sample alone, filled up to whole patches
            whole = -(-length // patch) * patch
            alone = inputs[length, :whole].clone() if whole <= 12 else inputs.new_zeros(whole, 3)
            alone[:length] = inputs[length, :length]
            alone[length:] = 0.5
            torch.testing.assert_close(model(alone[None])[0], zeros[length])
        torch.testing.assert_close(model.get_submodule("head").bias, zeros[0])

    def test_gradients_do_not_come_from_behind_the_end(self) -> None:
        model = self.model_of(1)
        inputs = torch.randn(5, 12, FEATURES, requires_grad=True)
        lengths = torch.tensor([0, 1, 5, 11, 12])
        model(inputs, lengths).sum().backward()
        assert inputs.grad is not None
        for gradient, length in zip(inputs.grad, lengths.tolist(), strict=True):
            assert bool((gradient[length:] == 0).all())
            assert bool((gradient[:length] != 0).any(1).all())


def test_ragged_targets_are_refused_with_what_to_do(short: Lab) -> None:
    with pytest.raises(SpecMismatch, match=r"'events' is ragged.* one of its targets.*--pad"):
        short.run(patch={"data": {"targets": ["events"]}})


class SetTask(Task):
    """A mean over each sample's values, whatever their number: a recipe as another might be."""

    @property
    def standardized(self) -> tuple[str, ...]:
        return ("events",)

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        model = nn.Linear(FEATURES, FEATURES)
        mean, std = statistics.get("events", (torch.zeros(FEATURES), torch.ones(FEATURES)))
        model.register_buffer("mean", mean.float())
        model.register_buffer("std", std.float())
        return model

    def parameters_json(self) -> dict[str, Any]:
        return {"longest": self.fields["events"].shape[0]}

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self._errors(model, batch).mean()}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"errors": self._errors(model, batch).double().sum()}

    def scores(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        mean = sums["errors"] / samples
        return {"loss": mean, "mae": mean, "mse": mean, "rmse": mean}

    def _errors(self, model: nn.Module, batch: Batch) -> Tensor:
        """Of each sample: how far what is computed of its values is from them, on average."""
        values, lengths = batch.arrays["events"], batch.arrays[lengths_of("events")]
        inside = (torch.arange(values.shape[1]) < lengths[:, None])[..., None]
        scaled = (values - model.get_buffer("mean")) / model.get_buffer("std")
        errors = (model(scaled) - scaled).square().where(inside, 0.0)
        means: Tensor = errors.sum((1, 2)) / lengths.clamp(min=1)
        return means


@pytest.mark.parametrize("kind", LOADERS)
def test_another_recipe_may_take_inputs_and_targets_that_are_ragged(
    short: Lab, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sequence, "takes_ragged", ("inputs", "targets"))
    monkeypatch.setattr(Sequence, "problems", lambda recipe, data, arrays: ())
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: SetTask)
    patch = with_loader(kind, {"data": {"targets": ["events"]}, "training": {"epochs": 12}})
    outcome = short.run(patch=patch)
    losses = [float(row[3]) for row in outcome.rows if row[2] == "train"]
    assert losses[-1] < losses[0] / 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", LOADERS)
def test_on_a_gpu_recorded_steps_train_as_launched_ones_and_as_the_host(
    short: Lab, kind: str
) -> None:
    exactly = {
        "recipe": {"num_layers": 1, "dropout": 0.0},
        "runtime": {"deterministic": True, "precision": "fp32"},
    }
    losses, weights = [], []
    for device, graphs in (("cpu", "auto"), ("cuda:0", "never"), ("cuda:0", "always")):
        patch = with_loader(kind, merged(exactly, {"runtime": {"cuda_graphs": graphs}}))
        outcome = short.execute(short.prepare(patch=patch, device=device))
        losses.append(train_losses(outcome))
        weights.append(outcome.weights)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert weights[1] == weights[2]
