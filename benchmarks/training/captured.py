"""A whole step replayed from a CUDA graph beside the same step launched one operation at a time."""

import time

from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import BATCH, settle
from benchmarks.loading.files import DataFile
from benchmarks.loading.stoker import open_file
from benchmarks.steps import spec_of, step_of, unstopped
from worker.trainer.data.batch import Batch
from worker.trainer.speed.cuda_graph import capture_step
from worker.trainer.step import TrainingStep

# The recipe `sequence`, so small that launching its operations takes longer than they do.
TINY = {"kind": "sequence", "hidden_size": 16, "patch": 36}
STEPS, RATE = 200, 1e-4
LEAST_GAIN = 2.0


def captured(file: DataFile, device: str, rounds: int, command: str) -> list[Figure]:
    """Microseconds of both, in turn, and how many times as fast the replayed one is."""
    request = {
        "recipe": TINY,
        "data": {"dataset": "windows"},
        "training": {"batch_size": BATCH},
        "runtime": {"precision": "fp32"},
    }
    spec = spec_of(request)
    data = open_file(file, "resident", "full", device=device)
    try:
        launched, captured = (step_of(spec, data.fields, device) for _ in range(2))
        with unstopped() as preparing:
            capture_step(captured, spec, data, preparing)
        batch = launched.made_up(BATCH)
    finally:
        data.close()
    pairs = [
        (_microseconds(launched, batch), _microseconds(captured, batch)) for _ in range(rounds)
    ]
    before, after = zip(*pairs, strict=True)
    gains = [slow / fast for slow, fast in pairs]
    return [
        figure_of("tiny LSTM: a launched step", "µs", before, command),
        figure_of("tiny LSTM: a captured step", "µs", after, command),
        figure_of("tiny LSTM: captured over launched", "", gains, command, LEAST_GAIN),
    ]


def _microseconds(step: TrainingStep, batch: Batch) -> float:
    """Of a step, of many without a wait in between."""
    _train(step, batch, STEPS // 10)
    settle()
    began = time.perf_counter()
    _train(step, batch, STEPS)
    settle()
    return (time.perf_counter() - began) / STEPS * 1e6


def _train(step: TrainingStep, batch: Batch, steps: int) -> None:
    for _ in range(steps):
        step.accumulate(batch, 1.0)
        step.apply(RATE)
