"""What good practitioners really run is accepted: the guard may warn of it, and refuses none."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from app.guard.facts import Facts
from tests.guard.changes import SORTED, by_torch, on_rtx
from tests.guard.world import A100, GIB, HISTORY, HOST, RTX, TURING, plan_of, weather, world

UNKNOWN = world(history=None)
FAST = replace(HISTORY, iterations_per_second=400.0, checkpoint_seconds=0.02)
SMALL = replace(HOST, memory_bytes=4 * GIB, available_bytes=3 * GIB, cores=4)
TINY = replace(TURING, name="NVIDIA GeForce GTX 1650", total_memory_bytes=4 * GIB,
               free_memory_bytes=3 * GIB, host=SMALL)  # fmt: skip
MILLION = weather(samples=1_000_000, size_bytes=1_000_000 * 21_744)
WINDOWS = weather(window_steps={"features": 1})


@dataclass(frozen=True)
class Sound:
    """A request, and the worlds in which it is asked for."""

    change: dict[str, Any]
    worlds: tuple[Facts, ...] = (world(), UNKNOWN, on_rtx(), on_rtx(history=None))


COSINE = {"kind": "cosine_warmup"}
CONSTANT = {"kind": "constant"}

SOUND: dict[str, Sound] = {
    "cosine with early stopping": Sound(
        {"training": {"epochs": 50}, "schedule": COSINE, "early_stopping": {"patience": 5}}
    ),
    "AdamW 1e-5, a batch of 1,024, no warm-up": Sound(
        {
            "training": {"epochs": 100, "batch_size": 1024},
            "optimizer": {"kind": "adamw", "lr": 1e-5},
            "schedule": CONSTANT,
        }
    ),
    "a time budget that ends early": Sound(
        {"training": {"epochs": 1000}, "policy": {"max_duration_seconds": 600.0}}
    ),
    "a checkpoint every 30 minutes": Sound(
        {"training": {"epochs": 600}, "checkpoint": {"every_seconds": 1800.0}}
    ),
    "Adam with L2": Sound({"optimizer": {"kind": "adam", "weight_decay": 1e-4}}),
    "deterministic": Sound({"runtime": {"deterministic": True}}),
    "logging each step": Sound({"training": {"epochs": 300, "log_every_steps": 1}}),
    "2,000 fast epochs": Sound(
        {"training": {"epochs": 2000, "batch_size": 512}},
        (world(history=FAST), world(history=replace(FAST, evaluation_seconds=1e-4)), UNKNOWN),
    ),
    "drop_last": Sound({"training": {"batch_size": 512, "drop_last": True}}),
    "a small file at full batch": Sound(
        {"training": {"epochs": 1000, "batch_size": 1024}, "optimizer": {"lr": 1e-3}},
        tuple(world(weather(samples=600), history=one) for one in (HISTORY, None)),
    ),
    "fine-tuning at 1e-5": Sound(
        {"training": {"epochs": 3, "batch_size": 16}, "optimizer": {"lr": 1e-5},
         "schedule": {"kind": "linear_warmup", "warmup_fraction": 0.06}}
    ),
    "half of the run is warm-up": Sound(
        {"training": {"epochs": 40}, "schedule": {**COSINE, "warmup_fraction": 0.5}}
    ),
    "constant rate with early stopping": Sound(
        {"training": {"epochs": 500}, "schedule": CONSTANT, "early_stopping": {"patience": 10}}
    ),
    "one cycle with early stopping": Sound(
        {"training": {"epochs": 30}, "early_stopping": {"patience": 3}}
    ),
    "a plateau with early stopping": Sound(
        {"training": {"epochs": 60}, "schedule": {"kind": "plateau"},
         "early_stopping": {"patience": 10}}
    ),
    "SWA over the last quarter": Sound(
        {"training": {"epochs": 40}, "schedule": COSINE, "early_stopping": {"patience": 32},
         "averaging": {"kind": "swa", "start_epoch": 31, "lr": 5e-4, "anneal_epochs": 2}}
    ),
    "EMA as it comes": Sound({"training": {"epochs": 150}, "averaging": {"kind": "ema"}}),
    "the smallest GPUs": Sound({"training": {"batch_size": 64}}, (world(devices=(TINY,)),)),
    "a large batch at the scaled rate": Sound(
        {
            "training": {"epochs": 60, "batch_size": 2048},
            "optimizer": {"kind": "sgd", "lr": 0.8},
            "schedule": {**COSINE, "warmup_fraction": 0.05},
        },
        (world(MILLION), on_rtx(), world(MILLION, devices=(A100,), history=None)),
    ),
    "no validation": Sound({"data": {"split": {"validation_fraction": 0.0}}}),
    "a seed of its own": Sound({"training": {"seed": 1234}, "runtime": {"deterministic": True}}),
    "bf16 on an A100": Sound(
        {"runtime": {"precision": "bf16-mixed"}, "training": {"batch_size": 256}},
        (world(devices=(A100,)), world(devices=(A100,), history=None)),
    ),
    "plain float32 on an A100, to compare": Sound(
        {"runtime": {"precision": "fp32"}}, (world(devices=(A100,)),)
    ),
    "the PyTorch loader as it comes": Sound(by_torch()),
    "the PyTorch loader with two processes": Sound(
        by_torch(num_workers=2, prefetch_factor=4, persistent_workers=True)
    ),
    "the PyTorch loader on a GPU": Sound(
        by_torch(num_workers=2, persistent_workers=True, pin_memory=True),
        (on_rtx(), on_rtx(history=None)),
    ),
    "accumulation for a large effective batch": Sound(
        {"training": {"epochs": 20, "batch_size": 32, "gradient_accumulation_steps": 8}}
    ),
    "a smoke run of three steps": Sound(
        {"training": {"max_steps": 3}, "early_stopping": {}, "checkpoint": {"every_seconds": None}}
    ),
    "SGD with momentum and weight decay": Sound(
        {
            "training": {"epochs": 90},
            "optimizer": {"kind": "sgd", "lr": 0.05, "weight_decay": 5e-4, "nesterov": True},
            "schedule": COSINE,
        }
    ),
    "evaluation by steps": Sound(
        {
            "training": {"epochs": 100},
            "evaluation": {"every_steps": 20, "every_epochs": None, "metrics": ["mae", "rmse"]},
        }
    ),
    "a small validation part, looked at often": Sound(
        {
            "training": {"epochs": 100},
            "data": {"split": {"validation_fraction": 0.05}},
            "evaluation": {"every_steps": 5},
        }
    ),
    "the best by another metric": Sound(
        {
            "evaluation": {"metrics": ["mae", "rmse"]},
            "checkpoint": {"monitor": "val_rmse", "keep_best": 3},
        }
    ),
    "a test part at the end": Sound(
        {"data": {"split": {"validation_fraction": 0.1, "test_fraction": 0.1}}}
    ),
    "windows of one series in their order": Sound({}, (world(WINDOWS), on_rtx())),
    "a deep network": Sound(
        {"recipe": {"num_layers": 3, "hidden_size": 128, "dropout": 0.2},
         "optimizer": {"lr": 3e-4}, "training": {"epochs": 40, "clip_grad_norm": 0.5}}
    ),
    "a compiled LSTM": Sound({"runtime": {"compile": {"mode": "default"}}, **by_torch()}),
    "a million samples in blocks": Sound(
        {"training": {"epochs": 3}, "data": {"loader": {"shuffle": "block"}}},
        (world(MILLION), world(MILLION, devices=(RTX,))),
    ),
    "a target that only rises": Sound({"training": {"epochs": 20}}, (world(SORTED), UNKNOWN)),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_spec_is_accepted(name):
    sound = SOUND[name]
    for facts in sound.worlds:
        plan = plan_of(sound.change, facts)
        assert [(issue.code, issue.message) for issue in plan.errors] == []
