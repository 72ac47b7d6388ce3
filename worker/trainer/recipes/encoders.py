"""Encoders that step through time, as several recipes have them: LSTM, GRU, transformer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

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


class StackedRNN(nn.Module):
    """An LSTM or GRU of several layers with dropout, made of one-layer RNNs and nn.Dropout.

    It computes what torch.nn.LSTM and GRU compute. Its parameters have their names, order and
    initial values. On a GPU, PyTorch's modules draw this dropout from a state of cuDNN that can
    neither be saved nor captured in a CUDA graph. nn.Dropout draws from PyTorch's own generator,
    which allows both.
    """

    def __init__(
        self, kind: type[nn.LSTM | nn.GRU], width: int, hidden: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        # nn.Module does not look into a list, so the RNNs are no submodules. Their parameters are
        # registered here instead, under the names that PyTorch uses for several layers.
        self._rnns = [kind(width, hidden, batch_first=True)]
        self._rnns += [kind(hidden, hidden, batch_first=True) for _ in range(1, layers)]
        for layer, rnn in enumerate(self._rnns):
            for name, parameter in rnn.named_parameters():
                self.register_parameter(_stacked_name(name, layer), parameter)

    def forward(
        self, inputs: Tensor, begin: Tensor | tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        """Returns what torch.nn.LSTM and GRU return with batch_first: the states at each step,
        (batch, steps, hidden), and the last state of each layer, (layers, batch, hidden). An LSTM's
        last states are a pair of hidden and cell.
        """
        states, ends = inputs, []
        for layer, rnn in enumerate(self._rnns):
            states, end = rnn(self.dropout(states) if layer else states, _state_of(begin, layer))
            ends.append(end)
        if isinstance(ends[0], tuple):
            return states, tuple(torch.cat(one) for one in zip(*ends, strict=True))
        return states, torch.cat(ends)

    def train(self, mode: bool = True) -> Self:
        for rnn in self._rnns:
            rnn.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves or converts the parameters; `to` and `cuda` call it. PyTorch may make new parameter
        objects here, so the RNNs get them again. cuDNN needs a layer's weights in one block.
        """
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for layer, rnn in enumerate(self._rnns):
            for name, _ in list(rnn.named_parameters()):
                setattr(rnn, name, self.get_parameter(_stacked_name(name, layer)))
            rnn.flatten_parameters()
        return self


def _stacked_name(name: str, layer: int) -> str:
    """Returns PyTorch's name for this parameter of a layer; `name` is that in a one-layer RNN."""
    return f"{name.removesuffix('0')}{layer}"


def _state_of(
    states: Tensor | tuple[Tensor, ...] | None, layer: int
) -> Tensor | tuple[Tensor, ...] | None:
    """Returns one layer's part of the states of all layers: (1, batch, hidden) each."""
    if isinstance(states, tuple):
        return tuple(one[layer : layer + 1] for one in states)
    return None if states is None else states[layer : layer + 1]


def build_encoder(recipe: EncodingRecipe, window: int, features: int) -> nn.Module:
    """Returns the encoder of one input, for `in_patches`. `window`: its length in time steps."""
    return step_encoder(recipe, window // recipe.patch, features * recipe.patch)


def step_encoder(recipe: EncodingRecipe, steps: int, width: int) -> nn.Module:
    """Returns the encoder of (batch, steps, width)."""
    hidden, layers = recipe.hidden_size, recipe.num_layers
    if recipe.encoder == "transformer":
        return TransformerEncoder(recipe, width, steps)
    kind = RNNS[recipe.encoder]
    if recipe.dropout and layers > 1:
        return StackedRNN(kind, width, hidden, layers, recipe.dropout)
    return kind(width, hidden, layers, batch_first=True)


def encoded(encoder: nn.Module, patches: Tensor) -> Tensor:
    """(batch, steps, width) to the state at each step, (batch, steps, hidden)."""
    if isinstance(encoder, TransformerEncoder):
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
    """(batch, window, features) as (batch, steps, patch × features). A row is one step."""
    return steps.reshape(steps.shape[0], -1, patch * steps.shape[-1])


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
