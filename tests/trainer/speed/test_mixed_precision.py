"""Loss scaling for fp16, tested on the CPU; and every precision on a GPU where there is one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from app.spec.optimization import SGD, AdamW, Optimizer
from app.spec.runtime import Runtime
from tests.trainer.lab import Lab
from worker.trainer.checkpoints.snapshot import capture, restore
from worker.trainer.device import configure_torch
from worker.trainer.optimizers import build_optimizer
from worker.trainer.recipes.base import Batch
from worker.trainer.state import TrainState
from worker.trainer.step import WINDOW, Precision, TrainingStep

CPU = torch.device("cpu")


class Regression:
    """The smallest task: one linear layer, mean absolute error, a loss that can be blown up."""

    recipe = SimpleNamespace(shape_fields=())
    shape_parameters = ()

    def __init__(self) -> None:
        self.factor = 1.0

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        error: torch.Tensor = model(batch.arrays["x"]) - batch.arrays["y"]
        return {"loss": error.float().abs().mean() * self.factor}

    measure = loss

    def made_up(self, size: int, device: torch.device) -> Batch:
        x = torch.ones(size, 4, device=device)
        return Batch({"x": x, "y": x.sum(dim=1, keepdim=True)}, size)

    def parameters_json(self) -> dict[str, str]:
        return {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def carried(self, model: nn.Module) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        assert not state


def build_step(
    wanted: Optimizer | None = None,
) -> tuple[TrainingStep, Regression, Batch]:
    torch.manual_seed(0)
    model, task = nn.Linear(4, 1), Regression()
    optimizer = build_optimizer(wanted or AdamW(), {"model": model.parameters()})
    task_like: Any = task
    step = TrainingStep(model, task_like, optimizer, Precision("fp16-mixed", CPU), 1.0)
    x = torch.randn(64, 4)
    return step, task, Batch({"x": x, "y": x.sum(dim=1, keepdim=True)}, 64)


def test_fp16_trains_fp32_weights_with_a_scaled_loss() -> None:
    step, _, batch = build_step()
    losses = []
    for _ in range(30):
        step.accumulate(batch, 1.0)
        step.apply(0.05)
        loss, weight = step.loss_sums[WINDOW].tolist()
        losses.append(loss / weight)
        step.restart_loss(WINDOW)
    assert losses[-1] < 0.7 * losses[0]
    assert step.grad_norm.item() < 10  # unscaled before it is clipped and told
    assert {p.dtype for p in step.model.parameters()} == {torch.float32}


def test_a_step_whose_gradients_overflow_is_skipped_and_the_scale_halved() -> None:
    step, task, batch = build_step()
    step.accumulate(batch, 1.0)
    step.apply(0.05)
    before = [p.clone() for p in step.model.parameters()]
    scale = step.precision.scaler.get_scale()
    task.factor = 1e35
    step.accumulate(batch, 1.0)
    step.apply(0.05)
    assert all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
    assert step.precision.scaler.get_scale() == scale / 2


def test_fp16_steps_are_those_of_a_plain_loop_to_the_last_bit() -> None:
    """Scaled, accumulated and clipped; one of them overflows and is skipped."""
    step, task, batch = build_step()
    model = nn.Linear(4, 1)
    model.load_state_dict(step.model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.01, fused=True)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for number in range(6):
        task.factor = 1e35 if number == 2 else 1.0
        optimizer.zero_grad()
        for share in (0.25, 0.75):
            step.accumulate(batch, share)
            with torch.autocast("cpu", torch.float16):
                loss = task.loss(model, batch)["loss"]
            scaler.scale(loss * share).backward()
            losses.append(loss.item())
        step.apply(0.05)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        for ours, plain in zip(step.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, plain)
    assert step.loss_sums[WINDOW].tolist() == [sum(loss * 64 for loss in losses), 12 * 64]
    assert step.precision.scaler.state_dict() == scaler.state_dict()


@pytest.fixture
def unfilled_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("unfilled_memory_is_nan")
def test_momentum_begins_from_nothing_when_the_very_first_step_is_skipped() -> None:
    step, task, batch = build_step(SGD(kind="sgd", momentum=0.9))
    task.factor = 1e35
    step.accumulate(batch, 1.0)
    step.apply(0.05)
    task.factor = 1.0
    step.accumulate(batch, 1.0)
    step.apply(0.05)
    plain, _, _ = build_step(SGD(kind="sgd", momentum=0.9))
    plain.accumulate(batch, 1.0)
    plain.apply(0.05)
    for found, expected in zip(step.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_scale_is_part_of_a_checkpoint() -> None:
    step, task, batch = build_step()
    task.factor = 1e35
    step.accumulate(batch, 1.0)
    step.apply(0.05)
    snapshot = capture(step, TrainState(step=1), {})
    other, _, _ = build_step()
    restore(other, snapshot)
    assert other.precision.scaler.state_dict() == step.precision.scaler.state_dict()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-mixed", "fp16-mixed"])
def test_whether_tf32_is_used_can_be_read_by_each_of_its_names(precision: str) -> None:
    """PyTorch raises where they contradict each other, and its compiler reads some of either."""
    configure_torch(Runtime(), precision, torch.get_num_threads())
    used = precision != "fp32"
    assert torch.get_float32_matmul_precision() == ("high" if used else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is used
    backends: Any = torch.backends
    settings = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    assert {one.fp32_precision for one in settings} == {"tf32" if used else "ieee"}
    assert backends.mkldnn.matmul.fp32_precision == "ieee"


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_each_part_computes_in_the_format_that_is_told(lab: Lab, precision: str) -> None:
    seen: dict[str, set[torch.dtype]] = {"lstm": set(), "head": set(), "weights": set()}

    def see(module: nn.Module, _: object, output: object) -> None:
        if isinstance(module, nn.LSTM):
            seen["lstm"].add(output[0].dtype)  # type: ignore[index]
        elif isinstance(module, nn.Linear):
            seen["head"].add(output.dtype)  # type: ignore[attr-defined]
        seen["weights"] |= {parameter.dtype for parameter in module.parameters()}

    hook = register_module_forward_hook(see)
    try:
        outcome = lab.run(patch={"runtime": {"precision": precision}})
    finally:
        hook.remove()
    (event,) = outcome.of_kind("applied")
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    told = {part: {dtypes[name]} for part, name in event["applied"]["computes_in"].items()}
    assert seen == told


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-mixed", "fp16-mixed"])
def test_every_precision_learns_on_a_gpu(lab: Lab, precision: str) -> None:
    patch = {
        "runtime": {"precision": precision},
        "recipe": {"dropout": 0.0},
        "training": {"epochs": 60},
    }
    outcome = lab.execute(lab.prepare(patch=patch, device="cuda:0"))
    assert outcome.result["best"]["val_loss"] < 0.4
    assert outcome.of_kind("progress")[-1]["torch_memory"]["peak"] > 0
