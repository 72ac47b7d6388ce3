"""What compiling gives the recipe `sequence`: compiled steps beside eager ones, and its price."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import torch

from benchmarks.figures import Figure, figure_of
from benchmarks.steps import spec_of, step_of
from worker.trainer.speed.compiler import quiet
from worker.trainer.step import TrainingStep

ROUNDS, STEPS = 15, 8
BATCH, RATE = 128, 1e-4
CPU = torch.device("cpu")
MODELS: dict[str, dict[str, object]] = {
    "LSTM 64, patch 6": {"encoder": "lstm", "hidden_size": 64, "patch": 6},
    "GRU 64, patch 6": {"encoder": "gru", "hidden_size": 64, "patch": 6},
    "LSTM 16, patch 36": {"encoder": "lstm", "hidden_size": 16, "patch": 36},
    "GRU 16, patch 36": {"encoder": "gru", "hidden_size": 16, "patch": 36},
}
COMMAND = "python -m benchmarks compile"


def measure() -> list[Figure]:
    """Seconds to the first compiled step, and steps of both kinds in turn."""
    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        return [*_prices(), *(_gain(name, recipe) for name, recipe in MODELS.items())]


def _prices() -> Iterator[Figure]:
    """For batches of one size, without evaluation; the first with the compiler's import."""
    for what in ("nothing in the cache", "all in the cache"):
        seconds = _compile(_build(next(iter(MODELS.values()))))
        torch.compiler.reset()
        yield figure_of(f"to the first compiled step, {what}", "s", [seconds], COMMAND)


def _gain(name: str, recipe: dict[str, object]) -> Figure:
    eager, compiled = _build(recipe), _build(recipe)
    _compile(compiled)
    ratios = list(_ratios(eager, compiled))
    return figure_of(f"{name}: a compiled step over an eager one", "", ratios, COMMAND)


def _build(recipe: dict[str, object]) -> TrainingStep:
    request = {
        "recipe": {"kind": "sequence", **recipe},
        "data": {"dataset": "made-up"},
        "runtime": {"precision": "fp32"},
    }
    return step_of(spec_of(request))


def _compile(step: TrainingStep) -> float:
    began = time.perf_counter()
    step.compile("default")
    with quiet():
        _train(step, 1)
    return time.perf_counter() - began


def _ratios(eager: TrainingStep, compiled: TrainingStep) -> Iterator[float]:
    _train(eager, STEPS)
    _train(compiled, STEPS)
    for _ in range(ROUNDS):
        yield _train(compiled, STEPS) / _train(eager, STEPS)


def _train(step: TrainingStep, steps: int) -> float:
    """The median of their seconds."""
    batch, seconds = step.made_up(BATCH), []
    for _ in range(steps):
        began = time.perf_counter()
        step.accumulate(batch, 1.0)
        step.apply(RATE)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
