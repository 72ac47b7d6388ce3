"""Encoders that step through time, as several recipes have them: LSTM, GRU, transformer."""

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from app.recipes.encoders import EncodingRecipe
from worker.trainer.data.source import Field

RNNS: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
Moments = tuple[Tensor, Tensor]
"""Mean and deviation to standardize by."""
SMALL = 0.02  # deviation of what is learned for each place: far below the states' own


class TransformerEncoder(nn.Module):
    """Pre-norm layers over patches with learned positions: (batch, steps, width) to (batch, steps,
    hidden). Each step sees all of its window, which ends where the forecast begins.
    """

    undecayed: ClassVar = ("positions",)

    def __init__(self, recipe: EncodingRecipe, width: int, steps: int) -> None:
        super().__init__()
        hidden = recipe.hidden_size
        self.embedding = nn.Linear(width, hidden)
        self.positions = nn.Parameter(torch.randn(steps, hidden) * SMALL)
        # Not torch.nn.TransformerEncoder, which begins with the same weights in all layers.
        self.layers = nn.Sequential(*(_layer(recipe) for _ in range(recipe.num_layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, patches: Tensor) -> Tensor:
        states: Tensor = self.layers(self.embedding(patches) + self.positions)
        return self.norm(states)  # type: ignore[no-any-return]


def _layer(recipe: EncodingRecipe) -> nn.Module:
    return nn.TransformerEncoderLayer(
        recipe.hidden_size,
        recipe.heads,
        4 * recipe.hidden_size,
        recipe.dropout,
        "gelu",
        batch_first=True,
        norm_first=True,
    )


def build_encoder(recipe: EncodingRecipe, window: int, features: int) -> nn.Module:
    """Of one input, by the length of its window in time steps."""
    width = features * recipe.patch
    if recipe.encoder == "transformer":
        return TransformerEncoder(recipe, width, window // recipe.patch)
    return RNNS[recipe.encoder](
        width,
        recipe.hidden_size,
        recipe.num_layers,
        batch_first=True,
        dropout=recipe.dropout if recipe.num_layers > 1 else 0.0,
    )


def encoded(encoder: nn.Module, patches: Tensor) -> Tensor:
    """(batch, steps, width) to the state at each step, (batch, steps, hidden)."""
    if not isinstance(encoder, nn.RNNBase):
        return encoder(patches)  # type: ignore[no-any-return]
    with precision_of_rnns(patches.device.type):
        states: Tensor = encoder(patches)[0]
    return states


def standardized(inputs: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Float32, in memory of its own; a batch may be a view of what stays on the device."""
    return (inputs.to(mean.dtype) - mean).div_(std).float()


def exact_for(field: Field, moments: Moments) -> Moments:
    """In float32, or float64 where that could not tell the file's own numbers apart: what is left
    of 1,000,000.05 less the mean has to be left before it is made narrow.
    """
    fits = np.can_cast(field.dtype, np.float32)
    mean, std = (moment.to(torch.float32 if fits else torch.float64) for moment in moments)
    return mean, std


def in_patches(steps: Tensor, patch: int) -> Tensor:
    """(batch, window, features) as (batch, steps, patch × features)."""
    batch_size, window, _ = steps.shape
    return steps.reshape(batch_size, window // patch, -1)


def precision_of_rnns(device_type: str) -> AbstractContextManager[object]:
    """Under bf16 autocast an RNN stays in fp32 (TF32 on a GPU).

    cuDNN's RNNs compute in fp16 under any autocast (ATen/cudnn/AutocastRNN.cpp), where gradients
    vanish without the loss scaling that bf16 does not have; oneDNN's LSTM refuses bf16 on CPUs
    that lack AVX-512.
    """
    in_bf16 = torch.get_autocast_dtype(device_type) is torch.bfloat16
    if torch.is_autocast_enabled(device_type) and in_bf16:
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
