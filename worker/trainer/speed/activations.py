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
    """Of the blocks that the task names. What is drawn for dropout is drawn again alike, so that
    gradients are those that they would have been. SpecMismatch where there are none.
    """
    blocks = list(task.blocks(model))
    if not blocks:
        raise SpecMismatch(
            f"runtime.activation_checkpointing: the recipe {task.recipe.kind} names no blocks of"
            " its model whose activations could be computed anew. Leave it out, and lower"
            " training.batch_size to save memory."
        )
    for block in blocks:
        block.forward = partial(_recomputed, block.forward)


def _recomputed(forward: Callable[..., Any], *inputs: Any, **more: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **more)
    return checkpoint(forward, *inputs, use_reentrant=False, **more)
