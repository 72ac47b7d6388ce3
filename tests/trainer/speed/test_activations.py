"""Activation checkpointing: the same numbers with less kept, and said where there is nothing."""

from typing import Any

import pytest
import torch
from torch import nn

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, StopAtPoll, merged
from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.speed.activations import checkpoint_activations

TRANSFORMER: dict[str, Any] = {"recipe": {"encoder": "transformer", "num_layers": 3}}
RECOMPUTED = merged(TRANSFORMER, {"runtime": {"activation_checkpointing": True}})


def test_a_run_that_computes_activations_anew_is_the_same_to_the_last_bit(lab: Lab) -> None:
    """Also with dropout, whose random numbers are drawn twice."""
    kept, recomputed = lab.run(patch=TRANSFORMER), lab.run(patch=RECOMPUTED)
    assert kept.losses == recomputed.losses
    assert kept.weights == recomputed.weights
    (applied,) = recomputed.of_kind("applied")
    assert applied["applied"]["activation_checkpointing"] is True


def test_it_resumes_exactly(lab: Lab) -> None:
    straight = lab.run(patch=RECOMPUTED)
    run_dir = lab.new_run()
    lab.run(run_dir, RECOMPUTED, stop=StopAtPoll(BUILDING_POLLS + 5))
    resumed = lab.run(run_dir, RECOMPUTED)
    assert resumed.of_kind("restored")
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)


def kept_bytes(model: nn.Module, inputs: torch.Tensor) -> int:
    """Of the tensors that are kept for the gradients, but for parameters."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs)
    return sum(kept.values())


class Blocks(SequenceTask):
    """Only what names the blocks."""

    def __init__(self) -> None:
        pass

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(model.children())


def test_less_is_kept_for_the_gradients() -> None:
    def layers() -> nn.Module:
        each = (nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(8))
        return nn.Sequential(*each)

    inputs = torch.randn(256, 64)
    whole, model = layers(), layers()
    checkpoint_activations(Blocks(), model)
    assert kept_bytes(model, inputs) < kept_bytes(whole, inputs) / 4
    with torch.inference_mode():
        model(inputs)


def test_a_recipe_without_blocks_ends_the_run_with_a_sentence(lab: Lab) -> None:
    with pytest.raises(SpecMismatch, match="sequence names no blocks") as caught:
        lab.run(patch={"runtime": {"activation_checkpointing": True}})
    assert caught.value.reason is Reason.spec_error
