"""PyTorch's optimizers as a spec wishes them, without the compiler they bring along."""

import inspect
from collections.abc import Iterable
from functools import cache

import torch
from torch import nn

from app.spec.optimization import SGD, Adam, Optimizer


@cache
def _leave_the_compiler_out() -> None:
    """Take off the wrappers by which these methods are exempt from compilation.

    They import torch._dynamo at their first call (PyTorch 2.13): 1.5 s of a core and 70 MiB at
    every start, for code that nobody compiles. That of `step` also switches gradients off.
    """
    base = torch.optim.Optimizer
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        setattr(base, name, inspect.unwrap(getattr(base, name)))
    for kind in (torch.optim.Adam, torch.optim.SGD):  # AdamW is an Adam
        kind.step = torch.no_grad()(inspect.unwrap(kind.step))  # type: ignore[method-assign]


def build_optimizer(wanted: Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Fused: one kernel for all weights, and no synchronization under loss scaling."""
    _leave_the_compiler_out()
    if isinstance(wanted, SGD):
        return _build_sgd(wanted, parameters)
    kind = torch.optim.Adam if isinstance(wanted, Adam) else torch.optim.AdamW
    return kind(
        parameters,
        lr=wanted.lr,
        betas=wanted.betas,
        weight_decay=wanted.weight_decay,
        fused=True,
    )


def _build_sgd(wanted: SGD, parameters: Iterable[nn.Parameter]) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(
        parameters,
        lr=wanted.lr,
        momentum=wanted.momentum,
        nesterov=wanted.nesterov,
        weight_decay=wanted.weight_decay,
        fused=True,
    )
    if wanted.momentum:
        # torch would begin with memory as it finds it, and leave it so when loss scaling skips the
        # first step. From zeros the first step is the same.
        for parameter in optimizer.param_groups[0]["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer
