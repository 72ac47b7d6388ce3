"""Activation checkpointing: a model's blocks keep what goes in, and compute the rest anew."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.base import Task


def checkpoint_activations(task: Task, model: nn.Module) -> None:
    """Recompute the activations of the blocks that the task names. Gradients keep their bits.

    Blocks that draw random numbers get the same ones again. torch restores their generator from the
    host for that (`preserve_rng_state`), which waits for the device and is refused in a capture.
    Raises SpecMismatch if the task names no blocks.
    """
    blocks = list(task.blocks(model))
    if not blocks:
        raise SpecMismatch(
            f"runtime.activation_checkpointing: the recipe {task.recipe.kind} names no blocks of"
            " its model whose activations could be computed anew. Leave it out, and lower"
            " training.batch_size to save memory."
        )
    for block in blocks:
        block.forward = partial(_recomputed, block.forward, task.recipe.has_random_blocks)


def _recomputed(forward: Callable[..., Any], is_random: bool, *inputs: Any, **more: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **more)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=is_random, **more)
