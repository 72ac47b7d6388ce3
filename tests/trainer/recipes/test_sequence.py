"""The sequence recipe: what it refuses, what it computes, and how a checkpoint loads without it."""

import json
import math
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from app.lifecycle import Reason
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, Lab, merged
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field
from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.sequence import SequenceTask


def task_for(patch: dict[str, Any], **shapes: tuple[int, ...]) -> SequenceTask:
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    shapes = {"features": (12, 3), "targets": (4,)} | shapes
    fields = {name: Field(shape, np.dtype("float32")) for name, shape in shapes.items()}
    return SequenceTask.for_run(spec, fields)


@pytest.mark.parametrize(
    ("patch", "shapes", "told"),
    [
        ({"recipe": {"patch": 5}}, {}, "does not divide the window.* 1, 2, 3, 4, 6, 12"),
        (
            {},
            {"features": (12,)},
            "A patch of 3 does not fit 'features', which has one time step",
        ),
        (
            {},
            {"features": (12, 3, 2)},
            r"'features' has samples of float32 \(12, 3, 2\).* windows of \(time steps, features\)",
        ),
        ({}, {"targets": (2, 2, 2)}, "horizon"),
        ({"data": {"targets": ["features", "targets"]}}, {}, "one array in data.targets"),
    ],
)
def test_fields_that_do_not_fit_are_refused_with_what_to_change(
    patch: dict[str, Any], shapes: dict[str, tuple[int, ...]], told: str
) -> None:
    with pytest.raises(SpecMismatch, match=told) as caught:
        task_for(patch, **shapes)
    assert caught.value.reason is Reason.spec_error


@pytest.mark.parametrize("target", [(), (4,), (4, 2)])
def test_targets_may_be_one_number_or_have_several_values_a_step(target: tuple[int, ...]) -> None:
    task = task_for({}, targets=target)
    model = task.build_model({}, {})
    assert model(torch.zeros(5, 12, 3)).shape == (5, *target)


def test_inputs_of_any_number_format_are_taken() -> None:
    model = task_for({}).build_model({}, {}).eval()
    inputs = torch.randint(0, 9, (5, 12, 3), dtype=torch.uint8)
    assert torch.equal(model(inputs), model(inputs.float()))


@pytest.mark.parametrize("lengths", [None, torch.tensor([0, 3, 12, 1, 5])])
def test_a_batch_is_as_it_was_after_a_step(lengths: Tensor | None) -> None:
    """Batches in order are views of what stays on the device for the next epoch."""
    model = task_for({}).build_model({"features": (torch.ones(3), torch.full((3,), 2.0))}, {})
    inputs = torch.randn(5, 12, 3)
    before = inputs.clone()
    model(inputs, lengths).sum().backward()
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("encoder", ["lstm", "gru"])
def test_bf16_is_for_the_head_and_the_encoder_stays_in_fp32(encoder: str) -> None:
    """cuDNN would compute it in fp16 without loss scaling, and some CPUs not at all."""
    model = task_for({"recipe": {"encoder": encoder}}).build_model({}, {}).eval()
    seen: dict[str, torch.Tensor] = {}
    model.get_submodule("encoder").register_forward_hook(
        lambda *call: seen.update(encoder=call[2][0])
    )
    model.get_submodule("head").register_forward_hook(lambda *call: seen.update(head=call[2]))
    inputs = torch.randn(5, 12, 3)
    model(inputs)
    exact = seen["encoder"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(inputs)
    assert torch.equal(seen["encoder"], exact)
    assert seen["head"].dtype is torch.bfloat16


def test_fp16_is_for_the_encoder_too() -> None:
    model = task_for({"recipe": {"encoder": "gru"}}).build_model({}, {}).eval()
    inputs = torch.randn(5, 12, 3)
    encoded: list[torch.Tensor] = []
    model.get_submodule("encoder").register_forward_hook(lambda *call: encoded.append(call[2][0]))
    model(inputs)
    with torch.autocast("cpu", dtype=torch.float16):
        model(inputs)
    assert not torch.equal(*encoded)


def test_standardization_can_be_left_out(lab: Lab) -> None:
    outcome = lab.run(patch={"data": {"standardize": {"inputs": False, "targets": False}}})

    weights = safetensors.torch.load(outcome.weights)
    assert weights["input_std"].tolist() == [1.0] * 3
    assert weights["target_mean"].item() == 0.0


@pytest.mark.parametrize("encoder", ["lstm", "gru"])
def test_a_checkpoint_loads_in_plain_pytorch(lab: Lab, encoder: str) -> None:
    patch = {"recipe": {"encoder": encoder, "num_layers": 1, "patch": 6}}
    outcome = lab.run(patch=patch)
    features, targets = waves(lab)
    checkpoint = outcome.checkpoint()
    # What follows is the snippet of docs/guide/http.md.

    weights = load_file(checkpoint / "model.safetensors")
    lstm = (torch.nn.LSTM if encoder == "lstm" else torch.nn.GRU)(6 * 3, 8, batch_first=True)
    lstm.load_state_dict({k[8:]: v for k, v in weights.items() if k.startswith("encoder.")})
    x = ((features - weights["input_mean"]) / weights["input_std"]).reshape(
        len(features), -1, 6 * 3
    )
    y = torch.nn.functional.linear(lstm(x)[0][:, -1], weights["head.weight"], weights["head.bias"])
    forecast = y * weights["target_std"] + weights["target_mean"]
    # The test part is the last tenth of the samples.
    mae = (forecast - targets)[54:].abs().mean().item()
    assert outcome.result["test"]["test_mae"] == pytest.approx(mae, rel=1e-5)


def waves(lab: Lab) -> tuple[torch.Tensor, torch.Tensor]:

    with h5py.File(lab.data) as file:
        return torch.from_numpy(file["features"][:]), torch.from_numpy(file["targets"][:])


def test_metrics_are_numpys_in_the_users_units() -> None:
    task = task_for({"recipe": {"loss": "mse"}})
    random = np.random.default_rng(1)
    std = torch.tensor(5.0)
    model = task.build_model({"targets": (torch.tensor(20.0), std)}, {}).eval()
    targets: NDArray[np.float32] = random.normal(20, 5, (32, 4)).astype(np.float32)
    inputs = torch.from_numpy(random.normal(0, 1, (32, 12, 3)).astype(np.float32))
    batch = Batch({"features": inputs, "targets": torch.from_numpy(targets)}, 32)
    sums = {name: total.item() for name, total in task.measure(model, batch).items()}
    found = task.scores(sums, 32)
    error = model(inputs).detach().numpy().astype(np.float64) - targets
    assert found["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-6)
    assert found["rmse"] == pytest.approx(math.sqrt((error**2).mean()), rel=1e-6)
    assert found["mse"] == pytest.approx((error**2).mean(), rel=1e-6)
    assert found["loss"] == pytest.approx((error**2).mean() / 25, rel=1e-5)
    assert found["loss"] == pytest.approx(task.loss(model, batch)["loss"].item())


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_numbers_far_from_zero_and_close_together_are_learnt_as_those_around_zero(
    lab: Lab, dtype: type[np.generic]
) -> None:
    """Of a mean of 1e6 and a deviation of 0.05, and whole numbers of 1e9 and 50."""
    far, scale = (1e6, 0.05) if dtype is np.float64 else (1e9, 50.0)
    random = np.random.default_rng(3)
    waves = {
        "features": random.normal(size=(60, 12, 3)) * scale,
        "targets": random.normal(size=(60, 4)) * scale,
    }
    if dtype is not np.float64:
        waves = {name: wave.round() for name, wave in waves.items()}
    found = []
    for offset in (0.0, far):
        with h5py.File(lab.data, "w") as file:
            for name, wave in waves.items():
                file[name] = (wave + offset).astype(dtype)
        outcome = lab.run()
        best = outcome.result["last"]
        found.append([*(float(row[-1]) for row in outcome.rows), best["val_mae"]])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3)


def test_narrow_numbers_are_computed_with_in_float32_alone(lab: Lab) -> None:
    weights = safetensors.torch.load(lab.run().weights)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
