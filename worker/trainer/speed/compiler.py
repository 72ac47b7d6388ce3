"""PyTorch's compiler as a trainer uses it. All imports of it are late: an eager run has none of it.

It takes its graphs from the cache in TORCHINDUCTOR_CACHE_DIR, and puts there what it had to build.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

import torch

from app.loading import unsearched

Function = TypeVar("Function", bound=Callable[..., Any])

# PyTorch's max-autotune would record CUDA graphs besides, which have a switch of their own.
MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}


MOST_SHAPES = 64


class Counts(NamedTuple):
    """Of this process so far."""

    graphs: int
    found: int
    """Of these, taken from the cache as a whole."""
    built: int
    """Kernels of a graph, or of its gradients, that were not in the cache."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without its warnings, which are of what it does to itself, and no user can change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiled(function: Function, mode: str) -> Function:
    """The same function, which is compiled whenever its arguments have shapes that are new to it;
    under mode none as it is.
    """
    if mode == "none":
        return function
    with quiet(), unsearched():
        from torch._dynamo import config as limits
        from torch._inductor import compile_fx, config  # noqa: F401 - the one brings the rest
    # Sizes of batches times shapes of packed arrays; PyTorch gives up after 8 by itself.
    limits.recompile_limit = MOST_SHAPES
    # As torch.use_deterministic_algorithms would tell it.
    config.deterministic = torch.are_deterministic_algorithms_enabled()
    return cast("Function", torch.compile(function, mode=MODES[mode], dynamic=False))


def count() -> Counts:
    """Once something was compiled."""
    from torch._dynamo.utils import counters

    # A graph with dropout is not kept as a whole; its kernels are.
    found, kernels = counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]
    built = kernels["fxgraph_cache_miss"] + kernels["fxgraph_cache_bypass"]
    return Counts(counters["stats"]["unique_graphs"], found, built)


def end_helpers() -> None:
    """End the processes that compile kernels for Triton, which would stay beside the training."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()
