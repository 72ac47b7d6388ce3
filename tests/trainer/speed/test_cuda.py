"""On a GPU: what the loop may wait for."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal

import pytest
import torch

from app.lifecycle import Reason
from app.spec.runtime import Runtime
from tests.trainer.lab import Lab
from worker.trainer import loop
from worker.trainer import run as execute
from worker.trainer.checkpoints.saver import CheckpointSaver
from worker.trainer.device import FLASH_FROM, attention_kernels
from worker.trainer.report.report import Report

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def within(mode: Literal["default", "error"], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in which to wait for the device is allowed, or an error."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            return function(*arguments, **named)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    return call


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("residency", ["resident", "stream"])
@pytest.mark.parametrize("graphs", ["never", "always"])
def test_nothing_waits_for_the_device_between_log_points(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, precision: str, residency: str, graphs: str
) -> None:
    """Log points, epochs, evaluations and checkpoints may."""
    may_wait = ((Report, "flush"), (Report, "epoch"), (CheckpointSaver, "save"), (loop, "validate"))
    for owner, name in may_wait:
        monkeypatch.setattr(owner, name, within("default", getattr(owner, name)))
    monkeypatch.setattr(execute, "train", within("error", loop.train))
    patch = {
        "runtime": {"precision": precision, "cuda_graphs": graphs},
        "data": {"loader": {"kind": "chunked", "residency": residency, "chunk_size": "4KiB"}},
        "training": {"log_every_steps": 4},
    }
    outcome = lab.execute(lab.prepare(patch=patch, device="cuda:0"))
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed


def test_auto_may_take_flash_in_half_precision_alone_and_without_a_mask() -> None:
    device = torch.device("cuda:0")
    if torch.cuda.get_device_capability(device) < FLASH_FROM:
        pytest.skip("a GPU from before flash")
    half = attention_kernels(Runtime(), "bf16-mixed", device)
    assert {"flash", "memory-efficient", "math"} <= set(half)
    assert "flash" not in attention_kernels(Runtime(), "bf16-mixed", device, masked=True)
    assert "flash" not in attention_kernels(Runtime(), "tf32", device)
