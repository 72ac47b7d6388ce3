"""On a GPU: steps replayed from a CUDA graph train as launched ones do."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, merged
from tests.trainer.speed.test_capture import CAPTURE_POLLS, RECOMPUTED, STREAMED, applied
from tests.trainer.test_numerics import train_losses
from worker.trainer.recipes.base import Batch
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.stop import StopFlag

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# Dropout between the layers and before the head.
ON_GPU = {"recipe": {"num_layers": 2, "dropout": 0.2}}


def run(
    lab: Lab,
    graphs: str,
    patch: dict[str, Any] | None = None,
    run_dir: Path | None = None,
    stop: StopFlag | None = None,
    device: str = "cuda:0",
) -> Outcome:
    wanted = merged(merged(ON_GPU, {"runtime": {"cuda_graphs": graphs}}), patch or {})
    return lab.execute(lab.prepare(run_dir, wanted, device=device), stop)


def assert_close(outcome: Outcome, expected: Outcome) -> None:
    assert train_losses(outcome) == pytest.approx(train_losses(expected), rel=1e-3)
    weights = safetensors.torch.load(expected.weights)
    for name, tensor in safetensors.torch.load(outcome.weights).items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    "patch",
    [
        {},
        {"training": {"gradient_accumulation_steps": 1}},
        {"training": {"batch_size": 42, "gradient_accumulation_steps": 1}},
        {"training": {"clip_grad_norm": None}},
        {"optimizer": {"kind": "adam"}},
        {"optimizer": {"kind": "sgd"}},
        {"optimizer": {"kind": "sgd", "momentum": 0.0}},
        {"runtime": {"precision": "tf32"}},
        {"runtime": {"precision": "bf16-mixed"}},
        {"runtime": {"precision": "fp16-mixed"}},
        {"recipe": {"encoder": "gru"}},
        {"recipe": {"num_layers": 1}},
        {"recipe": {"dropout": 0.0}},
        RECOMPUTED,
        {"schedule": {"kind": "onecycle"}},
        {"schedule": {"kind": "constant"}},
        {"averaging": {"kind": "ema", "decay": 0.9, "ramp": True}},
        {"optimizer": {"decay": "matrices", "backbone_lr": 1e-3}},
        {"averaging": {"kind": "swa", "start_epoch": 2, "lr": 0.005}},
        {"data": {"loader": STREAMED}},
        {"data": {"loader": {"kind": "dataloader", "num_workers": 2, "pin_memory": True}}},
    ],
    ids=str,
)
def test_recorded_steps_train_as_launched_ones(lab: Lab, patch: dict[str, Any]) -> None:
    """With ragged last steps, dropout, evaluations, a test and checkpoints in between."""
    launched, captured = run(lab, "never", patch), run(lab, "always", patch)
    assert applied(captured)["captured"] is True
    assert captured.of_kind("warning") == []
    assert_close(captured, launched)
    assert captured.result["test"]["step"] == launched.result["test"]["step"]


@pytest.mark.parametrize("first", ["never", "always"])
@pytest.mark.parametrize("second", ["never", "always"])
def test_a_deterministic_run_ends_with_the_same_bits_however_it_is_resumed(
    lab: Lab, first: str, second: str
) -> None:
    exactly = {"runtime": {"deterministic": True}, "schedule": {"kind": "onecycle"}}
    straight, run_dir = run(lab, "never", exactly), lab.new_run()
    polls = BUILDING_POLLS + 2 + CAPTURE_POLLS * (first == "always")
    for graphs, stop in ((first, StopAtPoll(polls)), (second, StopAtPoll())):
        outcome = run(lab, graphs, exactly, run_dir, stop)
    assert outcome.of_kind("restored")[0]["step"] % 3 > 0
    assert (outcome.weights, outcome.losses) == (straight.weights, straight.losses)


@pytest.mark.parametrize(("first", "second"), [("cuda:0", "cpu"), ("cpu", "cuda:0")])
def test_a_run_goes_on_on_another_device(lab: Lab, first: str, second: str) -> None:
    run_dir = lab.new_run()
    polls = BUILDING_POLLS + 2 + CAPTURE_POLLS * (first != "cpu")
    run(lab, "auto", None, run_dir, StopAtPoll(polls), first)
    outcome = run(lab, "auto", None, run_dir, None, second)
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed
    assert applied(outcome)["captured"] is (second != "cpu")
    assert outcome.of_kind("warning")[0]["code"] == "device_changed"


class Waiting(SequenceTask):
    def loss(self, model: torch.nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        loss = super().loss(model, batch)
        assert loss["loss"].item() >= 0
        return loss


class Uncapturable(SequenceTask):
    def loss(self, model: torch.nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        loss = super().loss(model, batch)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return loss


@pytest.mark.parametrize(
    ("task", "told"), [(Waiting, "A step waits for the device"), (Uncapturable, "It failed")]
)
def test_a_step_that_cannot_be_recorded_is_launched(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, task: type[SequenceTask], told: str
) -> None:
    """Random numbers, streams and memory too are as if nothing had been tried."""
    launched = run(lab, "never")
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: task)
    outcome = run(lab, "auto")
    (warning,) = outcome.of_kind("warning")
    assert warning["code"] == "not_captured"
    assert told in warning["message"]
    assert_close(outcome, launched)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
