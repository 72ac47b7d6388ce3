"""Optimizers compute what PyTorch's do, and do not bring its compiler into the trainer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from worker.trainer.optimizers import set_learning_rate

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import sys
from pathlib import Path
from tests.trainer.lab import BUILDING_POLLS, Lab, StopAtPoll

lab = Lab(Path(sys.argv[1]))
for kind in ("adamw", "adam", "sgd"):
    run_dir = lab.new_run()
    patch = {"optimizer": {"kind": kind, "lr": 0.01}}
    stopped = lab.run(run_dir, patch, stop=StopAtPoll(BUILDING_POLLS + 12))
    assert stopped.end.reason != "completed", stopped.end
    ended = lab.run(run_dir, patch)
    assert ended.end.reason == "completed", ended.end
    assert ended.of_kind("restored")[0]["step"] > 0, ended.events
print(*sorted(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor")))
"""

COMPARE = """
import sys
import torch
from app.spec.optimization import SGD, Adam, AdamW
from worker.trainer.optimizers import build_optimizer

def train(make):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    optimizer = make(model.parameters())
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()
        if step == 2:
            optimizer.load_state_dict(optimizer.state_dict())
    return torch.cat([p.detach().flatten() for p in model.parameters()])

optim, plain = torch.optim, {"lr": 0.01, "weight_decay": 0.0, "fused": True}
theirs = [
    train(lambda p: optim.AdamW(p, **plain)),
    train(lambda p: optim.Adam(p, **plain)),
    train(lambda p: optim.SGD(p, momentum=0.9, **plain)),
]
assert "torch._dynamo" in sys.modules, "PyTorch does not bring it any more: take the module apart"
wanted = [kind(kind=name, lr=0.01, weight_decay=0.0)
          for kind, name in ((AdamW, "adamw"), (Adam, "adam"), (SGD, "sgd"))]
# Weights may be changed in place only where gradients are off; the fused kernels do not look.
build_optimizer(wanted[0], {"model": torch.nn.Linear(5, 3).parameters()})
train(lambda p: optim.AdamW(p, fused=False))
train(lambda p: optim.SGD(p, fused=False))
ours = [train(lambda p, one=one: build_optimizer(one, {"model": p})) for one in wanted]
print([bool((a == b).all()) for a, b in zip(theirs, ours, strict=True)])
"""


def in_a_process(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_training_and_resuming_leave_the_compiler_where_it_is(tmp_path: Path) -> None:
    assert in_a_process(TRAIN, str(tmp_path)) == ""


@pytest.mark.slow
def test_the_weights_are_those_of_untouched_optimizers() -> None:
    assert in_a_process(COMPARE) == "[True, True, True]"


@pytest.mark.parametrize(
    ("device", "rate"), [("cpu", 1e-3), ("meta", float(np.float32(1e-3)))], ids=["cpu", "elsewhere"]
)
def test_a_rate_is_what_a_recorded_step_reads_from_the_device(device: str, rate: float) -> None:
    """A GPU's fused kernels read a float32 there, which 1e-3 is not; on a CPU it is as asked."""
    weights = torch.zeros(1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=1.0)
    set_learning_rate(optimizer, 1e-3)
    assert optimizer.param_groups[0]["lr"] == rate
