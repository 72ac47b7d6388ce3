"""Optimizers compute what PyTorch's do, and do not bring its compiler into the trainer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from app.recipes.sequence import Sequence
from app.spec.optimization import SGD, Adam, AdamW, Optimizer
from worker.trainer.optimizers import build_optimizer, set_learning_rate
from worker.trainer.recipes.base import undecayed_parameters
from worker.trainer.recipes.encoders import StackedRNN, TransformerEncoder
from worker.trainer.recipes.sequence_model import BlockFusion

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


def every_kind_of_module() -> nn.Module:
    recipe = Sequence(kind="sequence", encoder="transformer", hidden_size=4, patch=1)
    modules = {
        "linear": nn.Linear(3, 2), "one_row": nn.Linear(3, 1), "convolution": nn.Conv2d(2, 3, 3),
        "lstm": nn.LSTM(3, 4), "attention": nn.MultiheadAttention(4, 2),
        "stacked": StackedRNN(nn.GRU, 3, 4, 2, 0.1),
        "layer_norm": nn.LayerNorm([2, 3]), "batch_norm": nn.BatchNorm1d(3),
        "group_norm": nn.GroupNorm(2, 4), "rms_norm": nn.RMSNorm([2, 3]),
        "embedding": nn.Embedding(5, 3), "bag": nn.EmbeddingBag(5, 3), "slope": nn.PReLU(3),
        "transformer": TransformerEncoder(recipe, 3, 5), "fusion": BlockFusion(recipe, 2),
    }  # fmt: skip
    return nn.ModuleDict(modules)


# The names do not decide; here they happen to tell what is what.
MATRICES = {
    "linear.weight", "one_row.weight", "convolution.weight", "lstm.weight_ih_l0",
    "lstm.weight_hh_l0", "stacked.weight_ih_l0", "stacked.weight_hh_l0", "stacked.weight_ih_l1",
    "stacked.weight_hh_l1", "attention.in_proj_weight", "attention.out_proj.weight",
    "transformer.embedding.weight", "transformer.layers.0.self_attn.in_proj_weight",
    "transformer.layers.0.self_attn.out_proj.weight", "transformer.layers.0.linear1.weight",
    "transformer.layers.0.linear2.weight", "fusion.attention.in_proj_weight",
    "fusion.attention.out_proj.weight", "fusion.feed_forward.0.weight",
    "fusion.feed_forward.3.weight",
}  # fmt: skip


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize(("kind", "name"), [(AdamW, "adamw"), (Adam, "adam"), (SGD, "sgd")])
def test_weight_decay_leaves_out_what_is_no_matrix(
    kind: type[AdamW | Adam | SGD], name: str, decay: str
) -> None:
    """A step of no gradient moves the weights that decay, and no others."""
    settings = {"kind": name, "lr": 0.1, "weight_decay": 0.5, "decay": decay}
    model = every_kind_of_module()
    optimizer = build_optimizer(
        kind.model_validate(settings),
        {"model": model.parameters()},
        undecayed=undecayed_parameters(model),
    )
    before = {}
    for place, parameter in model.named_parameters():
        before[place] = parameter.data.fill_(1.0).clone()
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {n for n, one in model.named_parameters() if not torch.equal(one, before[n])}
    assert moved == (MATRICES if decay == "matrices" else before.keys())


def test_a_weight_that_an_embedding_shares_with_a_layer_does_not_decay() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    assert undecayed_parameters(model) == set(model.parameters())


@pytest.mark.parametrize(
    ("wanted", "factors", "expected"),
    [
        (AdamW(), {}, {(1.0, 0.01): 2, (1.0, 0.0): 2}),
        (AdamW(), {"backbone": 1.0}, {(1.0, 0.01): 2, (1.0, 0.0): 2}),
        (AdamW(decay="all"), {}, {(1.0, 0.01): 4}),
        (AdamW(weight_decay=0.0), {}, {(1.0, 0.0): 4}),
        (Adam(kind="adam"), {"backbone": 0.1}, {(0.1, 0.0): 2, (1.0, 0.0): 2}),
        (AdamW(decay="all"), {"backbone": 0.1}, {(0.1, 0.01): 2, (1.0, 0.01): 2}),
        (
            AdamW(), {"backbone": 0.1},
            {(0.1, 0.01): 1, (0.1, 0.0): 1, (1.0, 0.01): 1, (1.0, 0.0): 1},
        ),
    ],
)  # fmt: skip
def test_there_is_one_group_for_each_pair_of_rate_and_decay(
    wanted: Optimizer, factors: dict[str, float], expected: dict[tuple[float, float], int]
) -> None:
    model = nn.ModuleDict({"backbone": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    groups = {name: module.parameters() for name, module in model.items()}
    optimizer = build_optimizer(wanted, groups, factors, undecayed_parameters(model))
    sizes = {
        (group["rate_factor"], group["weight_decay"]): len(group["params"])
        for group in optimizer.param_groups
    }
    assert (sizes, len(optimizer.param_groups)) == (expected, len(expected))


@pytest.mark.parametrize(
    ("device", "rate"), [("cpu", 1e-3), ("meta", float(np.float32(1e-3)))], ids=["cpu", "elsewhere"]
)
def test_a_rate_is_what_a_recorded_step_reads_from_the_device(device: str, rate: float) -> None:
    """A GPU's fused kernels read a float32 there, which 1e-3 is not; on a CPU it is as asked."""
    weights = torch.zeros(1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=1.0)
    set_learning_rate(optimizer, 1e-3)
    assert optimizer.param_groups[0]["lr"] == rate
