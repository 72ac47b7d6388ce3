"""PyTorch's optimizers as a spec wishes them, without the compiler they bring along."""

import inspect
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from app.spec.optimization import SGD, Adam, Optimizer

NO_FACTORS: Final = MappingProxyType[str, float]({})


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


def build_optimizer(
    wanted: Optimizer,
    groups: Mapping[str, Iterable[nn.Parameter]],
    rate_factors: Mapping[str, float] = NO_FACTORS,
    undecayed: Collection[nn.Parameter] = (),
) -> torch.optim.Optimizer:
    """Fused: one kernel for each group, and no synchronization under loss scaling.

    `groups`: parameters by the recipe's name; their learning rate is that of the schedule times the
    factor of the name, 1 where `rate_factors` has none. `undecayed`: the parameters that weight
    decay leaves out, unless `wanted.decay` is all.
    """
    _leave_the_compiler_out()
    parameters = _by_rate_and_decay(wanted, groups, rate_factors, set(undecayed))
    if isinstance(wanted, SGD):
        return _build_sgd(wanted, parameters)
    kind = torch.optim.Adam if isinstance(wanted, Adam) else torch.optim.AdamW
    return kind(
        parameters,
        lr=wanted.lr,
        betas=wanted.betas,
        fused=True,
    )


def _by_rate_and_decay(
    wanted: Optimizer,
    groups: Mapping[str, Iterable[nn.Parameter]],
    rate_factors: Mapping[str, float],
    undecayed: Collection[nn.Parameter],
) -> list[dict[str, Any]]:
    """One optimizer group for each pair of rate factor and decay, so that few kernels are launched.

    `names` has the recipe's groups that have parameters in it.
    """
    merged: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameters in groups.items():
        factor = rate_factors.get(name, 1.0)
        for parameter in parameters:
            is_left_out = wanted.decay == "matrices" and parameter in undecayed
            decay = 0.0 if is_left_out else wanted.weight_decay
            empty = {"params": [], "names": [], "rate_factor": factor, "weight_decay": decay}
            group = merged.setdefault((factor, decay), empty)
            group["params"].append(parameter)
            if name not in group["names"]:
                group["names"].append(name)
    return list(merged.values())


def _build_sgd(wanted: SGD, parameters: list[dict[str, Any]]) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(
        parameters,
        lr=wanted.lr,
        momentum=wanted.momentum,
        nesterov=wanted.nesterov,
        fused=True,
    )
    if wanted.momentum:
        # torch would begin with memory as it finds it, and leave it so when loss scaling skips the
        # first step. From zeros the first step is the same.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Of each group, by its factor. Without waiting for the device; a tensor in place, where a
    captured step reads it.

    Both are the same number, so that a training is the same whether its steps are captured or not.
    """
    for group in optimizer.param_groups:
        rate = value * group.get("rate_factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = float(_precision_of_rate(group)(rate))


def kept_of_each(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """The names of what it keeps of a parameter that has had a gradient."""
    if isinstance(optimizer, torch.optim.SGD):
        return ("momentum_buffer",) if optimizer.defaults["momentum"] else ()
    return "step", "exp_avg", "exp_avg_sq"


def make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Have all that changes from step to step lie on the device, where a CUDA graph finds it."""
    for group in optimizer.param_groups:
        rate = np.array(group["lr"], _precision_of_rate(group))
        group["lr"] = torch.from_numpy(rate).to(group["params"][0].device)
        if "capturable" in group:  # SGD has nothing that it would need to be told
            group["capturable"] = True
            _begin(optimizer, group["params"])


def _precision_of_rate(group: Mapping[str, Any]) -> type[np.floating[Any]]:
    """The fused kernels of a GPU read a rate from the device as float32 (PyTorch 2.13)."""
    on_host = group["params"][0].device.type == "cpu"
    return np.float64 if on_host else np.float32


def make_plain(optimizer: torch.optim.Optimizer) -> None:
    """Undo `make_capturable`; the state stays."""
    for group in optimizer.param_groups:
        group["lr"] = float(group["lr"])
        if "capturable" in group:
            group["capturable"] = False


def _begin(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Give Adam now the state that it would begin with at its first step (PyTorch 2.13)."""
    for parameter in parameters:
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
