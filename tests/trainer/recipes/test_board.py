"""The board recipe: what it refuses, what it computes of bits, and how its runs end."""

import json
import shutil
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from app.lifecycle import Reason
from app.planning.ladder import Rung
from app.recipes.board import Board
from app.spec.recipe import Array
from app.spec.run import RunSpec
from tests.trainer.lab import (
    BASE_SPEC,
    SAMPLES,
    Killed,
    Lab,
    Outcome,
    StopAtPoll,
    merged,
    step_of,
)
from tests.trainer.test_numerics import train_losses
from worker.trainer.data.source import Field
from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.base import Batch
from worker.trainer.recipes.board import BoardModel, BoardTask

# A toy game: stones of two kinds on 4 x 4 squares; a stone of kind k may make the move
# square x 2 + k. The move that is played is the first legal one, and who has more stones wins.
SQUARES, KINDS = 16, 2
MOVES = SQUARES * KINDS
FIELDS = {
    "planes": ((4,), "uint8"), "legal": ((4,), "uint8"), "move": ((), "int16"),
    "value": ((), "int8"), "plain": ((2, 4, 4), "bool"),
}  # fmt: skip
RECIPE = {
    "kind": "board", "planes": KINDS, "board": [4, 4], "moves": MOVES, "channels": 16, "blocks": 1,
}  # fmt: skip
UNSCALED = {"inputs": False, "targets": False}
LEGAL: dict[str, Any] = {
    "recipe": RECIPE | {"stage": "legal"},
    "data": {"inputs": ["planes"], "targets": ["legal"], "standardize": UNSCALED},
    "evaluation": {"metrics": ["f1", "exact"]},
}
PLAY: dict[str, Any] = {
    "recipe": RECIPE | {"stage": "play"},
    "data": {
        "inputs": ["planes", "legal"], "targets": ["move", "value"], "standardize": UNSCALED,
    },
    "evaluation": {"metrics": ["policy_accuracy", "policy_loss", "value_mae"]},
    "loss_weights": {"value": 0.5},
}  # fmt: skip
STAGES = pytest.mark.parametrize("stage", [LEGAL, PLAY], ids=["legal", "play"])


def positions(samples: int = SAMPLES) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(3)
    plain = random.random((samples, KINDS, 4, 4)) < 0.3
    plain[:, 0, 0, 0] |= ~plain.any((1, 2, 3))  # a move at least
    legal = plain.transpose(0, 2, 3, 1).reshape(samples, MOVES)
    ahead = plain[:, 0].sum((1, 2)) - plain[:, 1].sum((1, 2))
    return {
        "planes": np.packbits(plain.reshape(samples, -1), axis=1),
        "plain": plain,
        "legal": np.packbits(legal, axis=1),
        "move": legal.argmax(1).astype(np.int16),
        "value": np.sign(ahead).astype(np.int8),
    }


@pytest.fixture
def board(lab: Lab) -> Lab:
    with h5py.File(lab.data, "r+") as file:
        for name, array in positions().items():
            file[name] = array
    return lab


def task_for(patch: dict[str, Any], **fields: tuple[tuple[int, ...], str]) -> BoardTask:
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    found = {n: Field(shape, np.dtype(kind)) for n, (shape, kind) in (FIELDS | fields).items()}
    return BoardTask.for_run(spec, found)


def batch_of(task: BoardTask, rows: slice = slice(None)) -> Batch:
    arrays = {name: torch.from_numpy(array[rows]) for name, array in positions().items()}
    return Batch(arrays, len(arrays["move"]))


def model_of(task: BoardTask) -> nn.Module:
    torch.manual_seed(0)
    return task.build_model({}, {}).eval()


@pytest.mark.parametrize(
    ("stage", "patch", "fields", "told"),
    [
        (LEGAL, {"data": {"standardize": {"inputs": True}}}, {}, "standardizes nothing"),
        (LEGAL, {"recipe": {"planes": 3}}, {}, r"uint8 \(4,\); 3 planes of 16 squares are 48 bits"),
        (LEGAL, {"recipe": {"moves": 40}}, {}, r"'legal' .*; 40 moves are 40 bits.* \(5,\)"),
        (LEGAL, {}, {"planes": ((32,), "uint8")}, "32 bits, so bytes"),
        (LEGAL, {}, {"planes": ((4,), "int8")}, "'planes' has samples of int8"),
        (LEGAL, {"data": {"inputs": ["planes", "legal"]}}, {}, "planes in data.inputs, not 2"),
        (PLAY, {"data": {"targets": ["move"]}}, {}, "move and result in data.targets, not 1"),
        (PLAY, {}, {"legal": ((5,), "uint8")}, "'legal'.* 32 moves are 32 bits"),
        (PLAY, {}, {"move": ((), "float32")}, "'move' has samples of float32 .* one integer"),
        (PLAY, {}, {"value": ((3,), "int8")}, "'value' has samples of int8 .* one number"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused_with_what_would(stage, patch, fields, told) -> None:
    with pytest.raises(SpecMismatch, match=told) as caught:
        task_for(merged(stage, patch), **fields)
    assert caught.value.reason is Reason.spec_error


@pytest.mark.parametrize("change", [{}, {"blocks": 0}, {"moves": 35, "planes": 5, "channels": 8}])
@pytest.mark.parametrize("stage", ["legal", "play"])
def test_the_parameters_are_counted_exactly(stage: str, change: dict[str, Any]) -> None:
    recipe = Board.model_validate({**RECIPE, "board": (4, 4), "stage": stage, **change})
    data = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, LEGAL))).data
    counted = sum(one.numel() for one in BoardModel(recipe).parameters())
    assert recipe.num_parameters(data, dict[str, Array]()) == counted


def test_packed_bits_are_planes_in_the_order_of_rows_and_columns() -> None:
    """What the tower gets is what the file's planes are, and booleans give the same."""
    packed, plain = task_for(LEGAL), task_for(merged(LEGAL, {"data": {"inputs": ["plain"]}}))
    seen: list[Tensor] = []
    for task in (packed, plain):
        model = model_of(task)
        model.get_submodule("tower").register_forward_hook(lambda *call: seen.append(call[1][0]))
        task.loss(model, batch_of(task))
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], torch.from_numpy(positions()["plain"]).float())


def test_a_logit_is_that_of_its_square_and_kind() -> None:
    task = task_for(LEGAL)
    model = model_of(task)
    heads: list[Tensor] = []
    model.get_submodule("policy").register_forward_hook(lambda *call: heads.append(call[2]))
    logits, _ = model(batch_of(task).arrays["planes"])
    for row, column, kind in ((0, 0, 1), (2, 3, 0), (3, 3, 1)):
        move = (row * 4 + column) * KINDS + kind
        assert torch.equal(logits[:, move], heads[0][:, kind, row, column])


def test_the_scores_of_legal_are_means_over_samples() -> None:
    """F1 a sample, as it is defined; a sample without a move, rightly guessed, counts as 1."""
    task = task_for(LEGAL)
    guesses = torch.from_numpy(np.random.default_rng(0).random((6, MOVES)) < 0.3)
    labels = torch.from_numpy(np.unpackbits(positions(6)["legal"], axis=1))
    guesses[0], guesses[1], labels[1] = labels[0] > 0, False, 0

    class Fixed(nn.Module):
        def forward(self, _: Tensor) -> tuple[Tensor, None]:
            return guesses.float() * 2 - 1, None

    arrays = {"planes": torch.zeros(6, 4, dtype=torch.uint8),
              "legal": torch.from_numpy(np.packbits(labels.numpy(), axis=1))}  # fmt: skip
    sums = task.measure(Fixed(), Batch(arrays, 6))
    found = task.scores({name: total.item() for name, total in sums.items()}, 6)
    each = []
    for guess, label in zip(guesses.numpy(), labels.numpy() > 0, strict=True):
        right, either = (guess & label).sum(), guess.sum() + label.sum()
        each.append(2 * right / either if either else 1.0)
    assert found["f1"] == pytest.approx(np.mean(each))
    assert found["exact"] == pytest.approx(2 / 6)


def test_the_policy_chooses_among_legal_moves_alone() -> None:
    task = task_for(PLAY)
    batch, model = batch_of(task), model_of(task)
    logits, _ = model(batch.arrays["planes"])
    legal = torch.from_numpy(np.unpackbits(positions()["legal"], axis=1)) > 0
    chances = [row[mask].softmax(0) for row, mask in zip(logits, legal, strict=True)]
    moves = batch.arrays["move"].tolist()
    places = [int(mask[:move].sum()) for mask, move in zip(legal, moves, strict=True)]
    expected = -torch.stack([c[p].log() for c, p in zip(chances, places, strict=True)]).mean()
    torch.testing.assert_close(task.loss(model, batch)["policy"], expected)
    best = [int(c.argmax()) for c in chances]
    sums = task.measure(model, batch)
    assert sums["right"] == sum(a == b for a, b in zip(best, places, strict=True))


def test_without_legal_moves_it_chooses_among_all() -> None:
    task = task_for(merged(PLAY, {"data": {"inputs": ["planes"]}}))
    batch, model = batch_of(task), model_of(task)
    logits, _ = model(batch.arrays["planes"])
    expected = nn.functional.cross_entropy(logits, batch.arrays["move"].long())
    torch.testing.assert_close(task.loss(model, batch)["policy"], expected)


@STAGES
def test_what_is_measured_adds_up_over_any_batches(stage: dict[str, Any]) -> None:
    task = task_for(stage)
    model = model_of(task)
    whole = task.measure(model, batch_of(task))
    halves = [task.measure(model, batch_of(task, rows)) for rows in (slice(0, 17), slice(17, None))]
    for name, total in whole.items():
        assert total.dtype is torch.float64
        torch.testing.assert_close(sum(half[name] for half in halves), total, rtol=1e-5, atol=1e-5)


@STAGES
def test_a_made_up_batch_is_a_valid_one(stage: dict[str, Any]) -> None:
    task = task_for(stage)
    batch = task.made_up(3, torch.device("cpu"))
    assert all(one.isfinite() for one in task.loss(model_of(task), batch).values())


def test_both_stages_have_the_same_tower() -> None:
    legal, play = (model_of(task_for(stage)).state_dict() for stage in (LEGAL, PLAY))
    names = {name for name in legal if name.startswith("tower.")}
    assert names == {name for name in play if name.startswith("tower.")} != set()
    assert all(legal[name].shape == play[name].shape for name in names)


@STAGES
def test_a_batch_cut_in_two_trains_as_the_whole(stage: dict[str, Any]) -> None:
    """No norm goes over the batch, so the memory ladder changes nothing that is learned."""
    task = task_for(stage)
    model = model_of(task).train()
    gradients = []
    for parts in ([slice(None)], [slice(0, 20), slice(20, None)]):
        model.zero_grad()
        for rows in parts:
            batch = batch_of(task, rows)
            losses = torch.stack(list(task.loss(model, batch).values()))
            (losses.sum() * batch.size / SAMPLES).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for whole, cut in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, cut, rtol=1e-4, atol=1e-6)


@STAGES
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_run_that_is_interrupted_ends_as_one_that_was_not(
    board: Lab, stage: dict[str, Any], kill: bool
) -> None:
    straight, run_dir = board.run(patch=stage), board.new_run()
    for poll in (12, 9, 17):
        folder = board.prepare(run_dir, stage)
        if kill:
            with pytest.raises(Killed):
                board.execute(folder, StopAtPoll(poll, kill=True))
        else:
            stopped = board.execute(folder, StopAtPoll(poll))
            assert stopped.end is not None
            assert stopped.end.reason is Reason.interrupted
    resumed = board.run(run_dir, stage)
    assert len(resumed.of_kind("restored")) == 1
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
    assert resumed.result == straight.result


def test_rare_labels_are_begun_at_their_rate() -> None:
    """So that few positives need no weights: the loss begins near what their rate allows, not by
    forgetting a half for each move.
    """
    task = task_for(merged(LEGAL, {"recipe": {"moves": 1_600}}), legal=((200,), "uint8"))
    labels = np.random.default_rng(0).random((64, 1_600)) < 0.007
    planes = batch_of(task).arrays["planes"][:60]
    legal = torch.from_numpy(np.packbits(labels[:60], axis=1))
    found = task.loss(model_of(task), Batch({"planes": planes, "legal": legal}, 60))["loss"].item()
    least = -0.007 * np.log(0.007) - 0.993 * np.log(0.993)
    assert least < found < 1.5 * least < np.log(2) / 10


@STAGES
def test_it_learns_the_game_and_each_head_has_a_curve(board: Lab, stage: dict[str, Any]) -> None:
    longer = {
        "training": {"epochs": 60},
        "optimizer": {"lr": 0.02},
        "evaluation": {"every_steps": None},
    }
    outcome = board.run(patch=merged(stage, longer))
    last = outcome.result["last"]
    if stage is LEGAL:
        assert last["val_f1"] > 0.95
        return
    assert last["val_policy_accuracy"] > 0.6
    seen = [event["values"] for event in outcome.of_kind("metrics")]
    for head in ("train_policy", "train_value"):
        curve = [values[head] for values in seen if head in values]
        assert curve[-1] < curve[0] / 4
    for values in seen:
        if "train_loss" in values:  # as `loss_weights` says
            weighted = values["train_policy"] + 0.5 * values["train_value"]
            assert values["train_loss"] == pytest.approx(weighted, rel=1e-5)


@STAGES
def test_it_trains_alike_in_mixed_precision_and_in_smaller_micro_batches(
    board: Lab, stage: dict[str, Any]
) -> None:
    exact = train_losses(board.run(patch=stage))
    mixed = train_losses(board.run(patch=merged(stage, {"runtime": {"precision": "bf16-mixed"}})))
    assert mixed != exact
    assert mixed == pytest.approx(exact, rel=0.05)
    cut = train_losses(board.run(patch=stage, rung=Rung(1, batch=3, evaluation_batch=2)))
    assert cut == pytest.approx(exact, rel=1e-3)


@pytest.mark.compiler
@pytest.mark.minutes
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@STAGES
def test_a_compiled_step_trains_alike(board: Lab, stage: dict[str, Any]) -> None:
    patch = merged(stage, {"training": {"batch_size": 7}})
    launched = board.run(patch=patch)
    compiled = board.run(patch=merged(patch, {"runtime": {"compile": {"mode": "default"}}}))
    (applied,) = compiled.of_kind("applied")
    assert applied["applied"]["compile"]["mode"] == "default"
    assert train_losses(compiled) == pytest.approx(train_losses(launched), rel=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@STAGES
def test_replayed_steps_train_as_launched_ones(board: Lab, stage: dict[str, Any]) -> None:
    def run(graphs: str) -> Outcome:
        patch = merged(stage, {"runtime": {"cuda_graphs": graphs}})
        return board.execute(board.prepare(patch=patch, device="cuda:0"))

    replayed, launched = run("always"), run("never")
    assert train_losses(replayed) == pytest.approx(train_losses(launched), rel=1e-3)
    weights = safetensors.torch.load(launched.weights)
    for name, tensor in safetensors.torch.load(replayed.weights).items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-2, atol=1e-4)


def test_play_begins_with_the_tower_of_legal_and_tunes_it_gently(board: Lab) -> None:
    """The heads are new and learn at the full rate; the tower stays close to what it was."""
    legal = board.run(patch=LEGAL)
    rates = {"lr": 0.01, "backbone_lr": 1e-9, "weight_decay": 0.0}
    begin = {"init_from": {"run": 1, "prefix": "tower."}, "optimizer": rates}
    start = [{"path": str(legal.checkpoint()), "carry": "init", "own": False}]
    play = board.run(patch=merged(PLAY, begin), restore=start)
    (restored,) = play.of_kind("restored")
    told = restored["init_from"]
    assert told["matched"] == told["parameters"] > 0
    before, after = (safetensors.torch.load(one.weights) for one in (legal, play))
    for name in before:
        if name.startswith("tower."):
            torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-6)
    (applied,) = play.of_kind("applied")
    assert applied["applied"]["learning_rates"] == {"backbone": 1e-9, "head": 0.01}


def test_legal_moves_count_as_much_as_pos_weight_says() -> None:
    task, weighted = task_for(LEGAL), task_for(LEGAL | {"pos_weight": 3.0})
    model, batch = model_of(task), batch_of(task)
    logits, legal = task._legal(model, batch)
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, legal, reduction="none")
    expected = (each * (1 + 2 * legal)).mean()
    torch.testing.assert_close(weighted.loss(model, batch)["loss"], expected)
    sums = weighted.measure(model, batch)
    torch.testing.assert_close(sums["loss"].float() / batch.size, expected)
    parts = [
        Batch(
            {name: array[rows] for name, array in batch.arrays.items()},
            len(batch.arrays["planes"][rows]),
        )
        for rows in (slice(0, 1), slice(1, None))
    ]
    loss, gradients = step_of(weighted, model, [batch])
    in_parts, accumulated = step_of(weighted, model, parts)
    assert in_parts == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(accumulated, gradients, rtol=0.0, atol=1e-6)


def test_weights_of_labels_that_a_stage_does_not_have_are_refused() -> None:
    with pytest.raises(SpecMismatch, match="no pos_weight"):
        task_for(PLAY | {"pos_weight": 3.0})
    with pytest.raises(SpecMismatch, match="no class_weights"):
        task_for(LEGAL | {"class_weights": [1.0, 2.0]})
