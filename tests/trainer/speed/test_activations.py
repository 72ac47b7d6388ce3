"""Activation checkpointing: the same numbers with less kept, and said where there is nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from app.lifecycle import Reason
from app.recipes.sequence import Sequence
from app.spec.recipe import Recipe
from tests.trainer.lab import (
    BUILDING_POLLS,
    FEATURES,
    HORIZON,
    WINDOW,
    Lab,
    StopAtPoll,
    merged,
)
from tests.trainer.recipes.molecules import FIELDS as MOLECULES
from tests.trainer.recipes.molecules import spec_of as spec_of_molecules
from tests.trainer.recipes.test_board import FIELDS as BOARD_FIELDS
from tests.trainer.recipes.test_board import LEGAL, UNSCALED
from tests.trainer.test_numerics import spec_of
from worker.trainer.data.source import Field
from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.base import Task
from worker.trainer.recipes.board import BoardTask
from worker.trainer.recipes.molecule import MoleculeTask
from worker.trainer.recipes.sequence import SequenceTask
from worker.trainer.speed.activations import checkpoint_activations

TRANSFORMER: dict[str, Any] = {"recipe": {"encoder": "transformer", "num_layers": 3}}
BOARD = LEGAL["recipe"]
BOARDS = {name: Field(shape, np.dtype(dtype)) for name, (shape, dtype) in BOARD_FIELDS.items()}
RECOMPUTED = merged(TRANSFORMER, {"runtime": {"activation_checkpointing": True}})


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_run_that_computes_activations_anew_is_the_same_to_the_last_bit(
    lab: Lab, dropout: float
) -> None:
    """Also with dropout, whose random numbers are drawn twice."""
    change = {"recipe": {"dropout": dropout}}
    kept = lab.run(patch=merged(TRANSFORMER, change))
    recomputed = lab.run(patch=merged(RECOMPUTED, change))
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
    """Names the layers of any model as blocks."""

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe: Any = recipe or Sequence(kind="sequence", dropout=0.2)

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


@pytest.mark.parametrize("is_random", [True, False])
def test_only_random_blocks_restore_the_generator(is_random: bool) -> None:
    """Restoring it is what a CUDA graph cannot capture. A layer that draws shows whether it was."""
    model, inputs = nn.Sequential(nn.Dropout(0.5)), torch.randn(64, requires_grad=True)
    checkpoint_activations(
        Blocks(Sequence(kind="sequence", dropout=0.2 if is_random else 0.0)), model
    )
    torch.manual_seed(0)
    loss = model(inputs).square().sum()
    after_forward = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), after_forward) is is_random


@pytest.mark.parametrize(
    ("recipe", "is_random"),
    [
        ({"kind": "sequence", "encoder": "transformer", "dropout": 0.0, "patch": 3}, False),
        ({"kind": "sequence", "encoder": "transformer", "dropout": 0.2, "patch": 3}, True),
        ({"kind": "molecule", "task": "regression", "dropout": 0.0}, False),
        ({"kind": "molecule", "task": "regression", "dropout": 0.2}, True),
        (BOARD, False),
    ],
    ids=str,
)
def test_a_recipe_says_truly_whether_its_blocks_draw(
    recipe: dict[str, Any], is_random: bool
) -> None:
    task = task_for(recipe)
    model = task.build_model({}, task.made_up_tables()).train()
    drawing: list[str] = []

    def note(block: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.equal(torch.get_rng_state(), states[id(block)]):
            drawing.append(type(block).__name__)

    states: dict[int, torch.Tensor] = {}
    blocks = list(task.blocks(model))
    for block in blocks:
        block.register_forward_pre_hook(
            lambda block, inputs: states.update({id(block): torch.get_rng_state()})
        )
        block.register_forward_hook(note)
    task.loss(model, task.made_up(4, torch.device("cpu")))
    assert states.keys() == {id(block) for block in blocks}
    assert (len(drawing) == len(blocks)) is is_random
    assert bool(drawing) is is_random
    assert task.recipe.has_random_blocks is is_random


def task_for(recipe: dict[str, Any]) -> Task:
    """A task of this recipe, on the fields of the tests of that recipe."""
    if recipe["kind"] == "molecule":
        spec = spec_of_molecules(recipe["task"], recipe=recipe)
        return MoleculeTask.for_run(spec, MOLECULES)
    if recipe["kind"] == "board":
        return BoardTask.for_run(spec_of(LEGAL), BOARDS)
    fields = {
        "features": Field((WINDOW, FEATURES), np.dtype(np.float32)),
        "targets": Field((HORIZON,), np.dtype(np.float32)),
    }
    spec = spec_of({"recipe": recipe, "data": {"standardize": UNSCALED}})
    return SequenceTask.for_run(spec, fields)


def test_a_recipe_without_blocks_ends_the_run_with_a_sentence(lab: Lab) -> None:
    with pytest.raises(SpecMismatch, match="sequence names no blocks") as caught:
        lab.run(patch={"runtime": {"activation_checkpointing": True}})
    assert caught.value.reason is Reason.spec_error
