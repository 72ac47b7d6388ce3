"""Each constant of a rule, by two specs or worlds one step apart: on one side alone it finds."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import Facts
from tests.guard.changes import COMPILED, STREAMED, USUAL, on_rtx, training
from tests.guard.world import (
    HISTORY,
    RTX,
    codes,
    parent_of,
    plan_of,
    weather,
    with_field,
    world,
)

Side = tuple[dict[str, Any], Facts]
RANDOM = "speed.random_reads_of_chunks"
WARMUP = "learning.no_warmup"
RAW: dict[str, Any] = {"data": {"standardize": {"targets": False, "inputs": False}}}


def targets(**changes: Any) -> Side:
    return RAW, world(with_field("targets", **changes))


def spec(change: dict[str, Any], **history: Any) -> Side:
    return change, world(history=replace(HISTORY, **history))


def dropping(samples: int) -> Side:
    """About 8,000 training samples, of which up to 99 are left out."""
    change = {**training(batch_size=100, drop_last=True), "data": {"split": {"test_fraction": 0.0}}}
    change["data"]["split"]["validation_fraction"] = 0.0
    change["checkpoint"] = {"keep_best": 0}
    return change, world(weather(samples=samples))


def sgd(lr: float, batch: int = 256) -> Side:
    return spec({"optimizer": {"kind": "sgd", "lr": lr}, "training": {"batch_size": batch}})


def restarted(step: int) -> Side:
    """One cycle of 130 steps, stretched over 156: 1.48 times the rate at 84, 1.51 times at 85."""
    parent = parent_of(training(epochs=5, **USUAL), step)
    return training(epochs=6, **USUAL), world(parent=parent)


def streamed(samples_read: int, **array: Any) -> Side:
    loader = {
        **STREAMED,
        "shuffle": "full",
        "chunk_size": f"{samples_read * 21_744 / 2**20:.3f}MiB",
    }
    return {"data": {"loader": loader}}, world(with_field("features", storage="chunked", **array))


def large_batch(epochs: int, **schedule: Any) -> Side:
    """4 steps an epoch."""
    kind = {"kind": "linear_warmup", **schedule}
    return {"training": {"epochs": epochs, "batch_size": 1024}, "schedule": kind}, world()


def trial(steps: int) -> Side:
    training = {"batch_size": 1024, "max_steps": steps}
    return {"training": training, "schedule": {"kind": "constant"}}, world()


def looking(every_steps: int) -> Side:
    """24 steps an epoch, without a history: only what a forward pass is worth decides."""
    often = {"every_steps": every_steps, "every_epochs": None}
    training = {"epochs": 1000, "batch_size": 134}
    return {"evaluation": often, "training": training}, world(history=None)


def saving(epochs: int) -> Side:
    """A save of 0.05 s every 2.45 s: a minute of them in 2,261.5 epochs."""
    return {
        "checkpoint": {"every_steps": 49, "keep_best": 0},
        **training(epochs=epochs, **USUAL),
    }, world()


def measuring(samples: int) -> Side:
    """A validation part of so many of 50,000, and a batch of 1,000."""
    split = {"validation_fraction": samples / 50_000}
    change = {"data": {"split": split}, "training": {"batch_size": 1000}}
    return change, world(weather(samples=50_000))


def held_out(samples: int) -> Side:
    """A validation part of 100 samples, and a batch of 128."""
    fraction = 100 / samples
    return {"data": {"split": {"validation_fraction": fraction}}}, world(weather(samples=samples))


def compiled_for(capability: tuple[int, int]) -> Side:
    return COMPILED, world(devices=(replace(RTX, capability=capability),))


def launched(pace: float) -> Side:
    change = {"runtime": {"cuda_graphs": "never"}, **training(epochs=500, **USUAL)}
    return change, on_rtx(history=replace(HISTORY, iterations_per_second=pace))


THRESHOLDS: dict[str, tuple[str, Side, Side]] = {
    "SMALLEST_STD": ("learning.unscaled", targets(std=0.099), targets(std=0.1)),
    "LARGEST_STD": ("learning.unscaled", targets(std=10.1), targets(std=10.0)),
    "LARGEST_OFFSET": ("learning.unscaled", targets(mean=10.1), targets(mean=10.0)),
    "LARGEST_OFFSET below 0": ("learning.unscaled", targets(mean=-10.1), targets(mean=-10.0)),
    "MOST_DROPPED": ("learning.drop_last_drops", dropping(8_082), dropping(8_079)),
    "SGD_RATE": ("learning.rate_beyond_batch", sgd(1.01), sgd(0.99)),
    "SGD_BATCH": ("learning.rate_beyond_batch", sgd(1.01, 256), sgd(1.01, 260)),
    "MOST_AMPLIFICATION": (RANDOM, streamed(643, chunk_rows=3), streamed(643, chunk_rows=2)),
    "CHUNK_CACHE_BYTES": (
        RANDOM,
        streamed(1_800, chunk_rows=1_554),
        streamed(1_800, chunk_rows=1_553),
    ),
    "LARGEST_JUMP": ("learning.rate_jumps_at_restart", restarted(85), restarted(84)),
    "SHORTEST_WARMUP": (WARMUP, large_batch(100, warmup_steps=4), large_batch(100, warmup_steps=5)),
    "FULL_RATE": (WARMUP, large_batch(2500, warmup_steps=102), large_batch(2500, warmup_steps=103)),
    "TRIAL_STEPS": (WARMUP, trial(20), trial(19)),
    "FORWARD_SHARE": ("speed.evaluation_share", looking(5), looking(6)),
    "LEAST_LOSS_SECONDS": ("speed.frequent_checkpoints", saving(2262), saving(2261)),
    "ENOUGH_SAMPLES": ("learning.small_part", measuring(399), measuring(400)),
    "TRITON_SINCE": ("correctness.cannot_compile", compiled_for((6, 2)), compiled_for((7, 0))),
    "SHORT_STEPS_PER_SECOND": ("speed.launched_steps", launched(100.0), launched(99.9)),
    "LARGEST_HELD_OUT": ("learning.small_part", held_out(520), held_out(504)),
}


@pytest.mark.parametrize(("code", "found", "missed"), THRESHOLDS.values(), ids=THRESHOLDS)
def test_a_constant_is_the_one_it_says(code, found, missed):
    assert code in codes(plan_of(*found))
    assert code not in codes(plan_of(*missed))
