"""The loop computes what a plain PyTorch loop computes, to the last bit."""

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from app.planning.schedule import learning_rate
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, BUILDING_POLLS, Lab, Outcome, StopAtPoll, merged, unstopped
from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import open_data
from worker.trainer.recipes.sequence import SequenceTask

PLAIN: dict[str, Any] = {
    "training": {"gradient_accumulation_steps": 1, "log_every_steps": 1},
    "evaluation": {"every_epochs": None, "every_steps": None},
    "checkpoint": {"every_steps": 1},
}


def spec_of(patch: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))


def train_losses(outcome: Outcome) -> list[float]:
    return [float(loss) for _, _, split, loss in outcome.rows if split == "train"]


def final_weights(outcome: Outcome) -> dict[str, Tensor]:
    return safetensors.torch.load(outcome.weights)


PLAIN_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, weight_decay=0.01, fused=True),
    "adam": partial(torch.optim.Adam, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9, fused=True),
}


def copied(batches: Iterator[Batch]) -> Iterator[tuple[dict[str, Tensor], int]]:
    """Several at once: their memory is the next one's."""
    for batch in batches:
        yield {name: array.clone() for name, array in batch.arrays.items()}, batch.size


def plain_loop(lab: Lab, spec: RunSpec) -> tuple[list[float], dict[str, Tensor]]:
    """What anybody would write: losses of every step, and the final weights."""
    torch.set_num_threads(1)
    data = open_data(spec, lab.datasets(), torch.device("cpu"), unstopped(lab.root))
    task = SequenceTask(spec, data.fields)
    statistics = data.statistics(("features", "targets"), unstopped(lab.root))
    torch.manual_seed(spec.training.seed)
    model = task.build_model(statistics, {})
    target_std = statistics["targets"][1].float()
    optimizer = PLAIN_OPTIMIZERS[spec.optimizer.kind](model.parameters())
    accumulation = spec.training.gradient_accumulation_steps
    total_steps = spec.training.epochs * -(-data.train.plan.num_batches // accumulation)
    in_bf16 = spec.runtime.precision == "bf16-mixed"
    losses: list[float] = []
    for epoch in range(spec.training.epochs):
        batches = data.train.iterate(epoch)
        while some := list(islice(copied(batches), accumulation)):
            optimizer.param_groups[0]["lr"] = learning_rate(
                spec.schedule, spec.optimizer.lr, len(losses), total_steps
            )
            optimizer.zero_grad()
            together, summed = sum(size for _, size in some), 0.0
            for arrays, size in some:
                with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
                    forecast = model(arrays["features"])
                    loss = ((forecast - arrays["targets"]) / target_std).abs().mean()
                (loss * (size / together)).backward()
                summed += loss.item() * size
            if spec.training.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), spec.training.clip_grad_norm)
            optimizer.step()
            losses.append(summed / together)
    data.close()
    return losses, model.state_dict()


@pytest.mark.parametrize(
    "patch",
    [
        {},
        {"training": {"gradient_accumulation_steps": 4}},  # 8 + 8 + 8 + 8, and 8 + 2
        {"training": {"clip_grad_norm": None}},
        {"training": {"clip_grad_norm": 0.05, "gradient_accumulation_steps": 2}},
        {"runtime": {"precision": "bf16-mixed"}, "training": {"gradient_accumulation_steps": 2}},
        {"optimizer": {"kind": "adam", "weight_decay": 0.0}},
        {"optimizer": {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.0}},
    ],
    ids=["plain", "accumulated", "unclipped", "clipped hard", "autocast", "adam", "sgd"],
)
def test_the_loop_is_a_plain_loop_to_the_last_bit(lab: Lab, patch: dict[str, Any]) -> None:
    patch = merged(PLAIN, patch)
    outcome = lab.run(patch=patch)
    losses, weights = plain_loop(lab, spec_of(patch))
    assert len(losses) in (18, 9, 6)
    assert train_losses(outcome) == losses
    for name, tensor in final_weights(outcome).items():
        assert torch.equal(tensor, weights[name]), name


def test_it_learns(lab: Lab) -> None:
    outcome = lab.run(patch={"training": {"epochs": 60}, "recipe": {"dropout": 0.0}})
    assert outcome.result["best"]["val_loss"] < 0.35


def test_a_log_point_is_the_mean_over_the_samples_since_the_last_one(lab: Lab) -> None:
    every = train_losses(lab.run(patch=PLAIN))
    some = lab.run(patch=merged(PLAIN, {"training": {"log_every_steps": 4}}))
    sizes = [8, 8, 8, 8, 8, 2] * 3
    bounds = [0, 4, 8, 12, 16, 18]
    expected = [
        math.fsum(loss * size for loss, size in zip(every[a:b], sizes[a:b], strict=True))
        / sum(sizes[a:b])
        for a, b in pairwise(bounds)
    ]
    assert train_losses(some) == pytest.approx(expected, rel=1e-12)


def test_an_epochs_loss_is_the_mean_over_its_samples(lab: Lab) -> None:
    outcome = lab.run(patch=PLAIN)
    losses, sizes = train_losses(outcome), [8, 8, 8, 8, 8, 2]
    for epoch, event in enumerate(outcome.of_kind("epoch")):
        part = losses[epoch * 6 : epoch * 6 + 6]
        mean = math.fsum(a * b for a, b in zip(part, sizes, strict=True)) / 42
        assert event["train_loss"] == pytest.approx(mean, rel=1e-12)
        assert event["epoch"] == epoch + 1


@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulated_small_batches_train_like_one_large_batch(lab: Lab, accumulation: int) -> None:
    """42 samples in steps of 16: the last step of an epoch has 10, in unequal micro-batches."""
    no_dropout = merged(PLAIN, {"recipe": {"dropout": 0.0}})
    large = lab.run(patch=merged(no_dropout, {"training": {"batch_size": 16}}))
    small = merged(
        no_dropout,
        {
            "training": {
                "batch_size": 16 // accumulation,
                "gradient_accumulation_steps": accumulation,
            }
        },
    )
    accumulated = lab.run(patch=small)
    assert train_losses(accumulated) == pytest.approx(train_losses(large), rel=1e-5)
    expected = final_weights(large)
    for name, tensor in final_weights(accumulated).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)


def test_dropping_the_last_batch_leaves_out_the_tail(lab: Lab) -> None:
    outcome = lab.run(patch=merged(PLAIN, {"training": {"drop_last": True}}))
    assert outcome.end is not None
    assert outcome.end.step == 15


def test_clipping_bounds_what_one_step_of_plain_sgd_moves(lab: Lab) -> None:
    patch = merged(
        PLAIN,
        {
            "training": {"clip_grad_norm": 0.01, "epochs": 1, "max_steps": 2},
            "optimizer": {"kind": "sgd", "momentum": 0.0, "lr": 0.5},
            "schedule": {"kind": "constant"},
        },
    )
    outcome = lab.run(patch=patch)
    first, second = (
        safetensors.torch.load_file(outcome.checkpoint(step) / "model.safetensors")
        for step in (1, 2)
    )
    moved = sum((second[name] - first[name]).double().square().sum() for name in first)
    assert float(moved) ** 0.5 == pytest.approx(0.5 * 0.01, rel=1e-3)
    assert all(
        e["values"]["grad_norm"] > 0.01 for e in outcome.of_kind("metrics") if "lr" in e["values"]
    )


def test_the_gradient_norm_is_told_without_clipping_too(lab: Lab) -> None:
    limit = {"training": {"max_steps": 1}}
    clipped = lab.run(patch=merged(PLAIN, limit))
    free = lab.run(patch=merged(PLAIN, {"training": {"max_steps": 1, "clip_grad_norm": None}}))
    norms = [o.of_kind("metrics")[0]["values"]["grad_norm"] for o in (clipped, free)]
    assert norms[0] == pytest.approx(norms[1])


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("encoder", ["lstm", "gru"])
@pytest.mark.parametrize("loss", ["mae", "mse", "huber"])
def test_every_optimizer_encoder_and_loss_lowers_the_loss(
    lab: Lab, kind: str, encoder: str, loss: str
) -> None:
    optimizer = {"kind": kind, "lr": 0.5 if kind == "sgd" else 0.01}
    patch = {
        "recipe": {"encoder": encoder, "loss": loss, "dropout": 0.0},
        "optimizer": optimizer,
        "training": {"epochs": 16, "log_every_steps": 3},
        "checkpoint": {"every_steps": None, "keep_best": 0},
    }
    losses = train_losses(lab.run(patch=patch))
    assert losses[-1] < 0.9 * losses[0]


def test_bf16_trains_with_fp32_weights_and_close_losses(lab: Lab) -> None:
    full = lab.run(patch={"recipe": {"dropout": 0.0}})
    mixed = lab.run(patch={"recipe": {"dropout": 0.0}, "runtime": {"precision": "bf16-mixed"}})
    assert train_losses(mixed) == pytest.approx(train_losses(full), rel=0.05)
    assert train_losses(mixed) != train_losses(full)
    assert {tensor.dtype for tensor in final_weights(mixed).values()} == {torch.float32}


def test_a_bf16_run_resumes_bit_exactly(lab: Lab) -> None:
    patch = {"runtime": {"precision": "bf16-mixed"}}
    straight = lab.run(patch=patch)
    run_dir = lab.new_run()
    lab.run(run_dir, patch, stop=StopAtPoll(BUILDING_POLLS + 12))
    resumed = lab.run(run_dir, patch)
    assert resumed.weights == straight.weights
    assert resumed.losses == straight.losses
