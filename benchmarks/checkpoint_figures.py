"""What a checkpoint costs a training: its stall, and all of it.

Beside a mere copy of the state, the same protocol in the loop, and `torch.save` there. The first
copy of a run takes new memory, which can be slow on a virtual machine; all others use it again.
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.figures import Figure, figure_of
from benchmarks.steps import spec_of, step_of
from worker.trainer.checkpoints.format import Tensors, publish
from worker.trainer.checkpoints.snapshot import capture
from worker.trainer.checkpoints.writer import CheckpointWriter
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep

ROUNDS = 5
# Asked for, of the stall.
MOST_OVER_A_COPY, MOST_OVER_INLINE = 1.5, 0.1
# So far from one another that the first is written when the other begins.
STEPS, SAVES_AT = 27, (9, 18)
BATCH = 32
# 25 million weights, of which AdamW keeps two more of each: a checkpoint of 285 MiB.
SPEC = {
    "recipe": {"kind": "sequence", "hidden_size": 1152, "num_layers": 2, "patch": 120},
    "data": {"dataset": "made-up", "loader": {"kind": "chunked"}},
    "training": {"epochs": 1, "batch_size": BATCH},
    "optimizer": {"kind": "adamw"},
    "runtime": {"precision": "fp32"},
}
COMMAND = "python -m benchmarks checkpoint"


class Timing(NamedTuple):
    """Seconds of all steps, with what was saved on the disk, and of the two calls to save."""

    total: float
    first: float
    stall: float


class Nothing:
    """Saves nothing."""

    def save(self, step: TrainingStep, path: Path) -> None:
        pass

    def finish(self) -> None:
        pass


class TorchSave(Nothing):
    """As scripts do it, and durable."""

    def save(self, step: TrainingStep, path: Path) -> None:
        with path.open("wb") as file:
            torch.save((step.model.state_dict(), step.optimizer.state_dict()), file)
            file.flush()
            os.fsync(file.fileno())


class MemoryCopy(Nothing):
    """The state from memory to memory: the least that a save in the background takes."""

    def __init__(self) -> None:
        self._copies: list[torch.Tensor] = []

    def save(self, step: TrainingStep, path: Path) -> None:
        state = [*step.model.state_dict().values()]
        state += [tensor for kept in step.optimizer.state.values() for tensor in kept.values()]
        self._copies = self._copies or [torch.empty_like(tensor) for tensor in state]
        for copy, tensor in zip(self._copies, state, strict=True):
            copy.copy_(tensor)


class Inline(Nothing):
    """What `Stoker` does, all of it in the loop."""

    def __init__(self) -> None:
        self._copies: Mapping[str, Tensors] = {}

    def save(self, step: TrainingStep, path: Path) -> None:
        snapshot = capture(step, TrainState(), {}, self._copies)
        self._copies = snapshot.parts
        publish(snapshot, path)


class Stoker(Nothing):
    """As `CheckpointSaver.save` does it."""

    def __init__(self) -> None:
        self._writer = CheckpointWriter()
        self._copies: Mapping[str, Tensors] = {}

    def save(self, step: TrainingStep, path: Path) -> None:
        self._writer.wait()
        snapshot = capture(step, TrainState(), {}, self._copies)
        self._copies = snapshot.parts
        self._writer.begin(partial(publish, snapshot, path))

    def finish(self) -> None:
        self._writer.wait()
        self._writer.close()


ARMS: tuple[type[Nothing], ...] = (Nothing, Stoker, TorchSave, MemoryCopy, Inline)


def measure() -> list[Figure]:
    """All arms in turn; the ratios are medians of the rounds'."""
    step = _build()
    _train(step, Nothing())  # allocates what all of them use
    rounds = [[_train(step, arm()) for arm in ARMS] for _ in range(ROUNDS)]
    without, ours, theirs, copied, inline = zip(*rounds, strict=True)
    costs = [_costs(arm, without) for arm in (ours, theirs)]
    return [
        figure_of("stall of a checkpoint of 285 MiB", "s", _stalls(ours), COMMAND),
        figure_of("stall of the first", "s", [arm.first for arm in ours], COMMAND),
        figure_of("stall, torch.save in the loop", "s", _stalls(theirs), COMMAND),
        _stall_over(ours, theirs, "torch.save in the loop"),
        _stall_over(ours, copied, "a memory copy of the state", MOST_OVER_A_COPY),
        _stall_over(ours, inline, "the same in the loop", MOST_OVER_INLINE),
        figure_of("training longer by a checkpoint", "s", costs[0], COMMAND),
        figure_of("training longer, torch.save in the loop", "s", costs[1], COMMAND),
    ]


def _stall_over(
    ours: Sequence[Timing], other: Sequence[Timing], name: str, most: float | None = None
) -> Figure:
    pairs = zip(_stalls(ours), _stalls(other), strict=True)
    ratios = [mine / theirs for mine, theirs in pairs]
    figure = figure_of(f"stall over {name}", "", ratios, COMMAND, most)
    return replace(figure, at_least=False)


def _stalls(arm: Sequence[Timing]) -> list[float]:
    return [timing.stall for timing in arm]


def _costs(arm: Sequence[Timing], without: Sequence[Timing]) -> list[float]:
    """Seconds by which each checkpoint made the training longer, waits for the disk included."""
    return [(a.total - b.total) / len(SAVES_AT) for a, b in zip(arm, without, strict=True)]


def _train(step: TrainingStep, arm: Nothing) -> Timing:
    batch = step.made_up(BATCH)
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        stalls, began = [], time.perf_counter()
        for number in range(1, STEPS + 1):
            step.accumulate(batch, 1.0)
            step.apply(1e-3)
            if number in SAVES_AT:
                stalled = time.perf_counter()
                arm.save(step, Path(folder) / f"step-{number}")
                stalls.append(time.perf_counter() - stalled)
        arm.finish()
        return Timing(time.perf_counter() - began, *stalls)


def _build() -> TrainingStep:
    return step_of(spec_of(SPEC))
