"""Captures a whole step as a CUDA graph, and proves before the first one that it computes the same.

A graph that is wrong trains on without a word. So none is used that was not tried on this device:
a few steps are launched one operation at a time, and once more by the graph
(worker.trainer.speed.proof).
"""

import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from app.planning.ladder import Rung
from app.planning.residency import in_gib
from app.spec.run import RunSpec
from app.spec.runtime import MOST_CAPTURED, RANDOM_BLOCKS
from worker.trainer.checkpoints.exactness import keeps_dropout_to_itself
from worker.trainer.data.batch import Batch, Bucket
from worker.trainer.data.dataset import DataSet
from worker.trainer.optimizers import make_capturable, make_plain
from worker.trainer.report.preparing import Preparing
from worker.trainer.speed.proof import (
    STEPS,
    Choose,
    TriedSteps,
    chosen_from,
    difference,
    identical,
    try_steps,
)
from worker.trainer.speed.static_step import StaticStep, StaticSteps, full_step
from worker.trainer.step import TrainingStep

logger = logging.getLogger(__name__)

Replay = Callable[[], None]


@dataclass(frozen=True)
class CaptureOutcome:
    """What became of `runtime.cuda_graphs`, as applied.json has it."""

    captured: bool
    why_not: str | None = None
    """A sentence; None where the step is captured."""
    bytes: int | None = None
    """Device memory that the graph holds."""
    identical: bool | None = None
    """Whether the steps that were tried agreed to the last bit."""
    launched_step_seconds: float | None = None
    replayed_step_seconds: float | None = None
    """Of the steps that were tried."""
    graphs: int | None = None
    """One for each shape of batches; more than one where arrays are packed."""


class NotCaptured(Exception):
    """What kept a step that could be captured from being so, as a sentence."""


def why_not(step: TrainingStep, spec: RunSpec, data: DataSet, rung: Rung) -> str | None:
    """A sentence where the step of this attempt is not to be captured, None where it is."""
    wanted, device = spec.runtime.cuda_graphs, step.precision.device
    shapes = full_step(data.train.plan, spec.training.gradient_accumulation_steps)
    if wanted == "never":
        return "runtime.cuda_graphs is never."
    if device.type != "cuda":
        return "CUDA graphs are of a GPU, and this attempt is on the CPU."
    if keeps_dropout_to_itself(step.model, device):
        return (
            "The model has a torch.nn.LSTM or GRU with dropout between its layers, and cuDNN draws "
            "that from a state that cannot be put back, so a captured step could not be compared "
            "with a launched one. One-layer RNNs with torch.nn.Dropout between them are captured."
        )
    recomputes = spec.runtime.activation_checkpointing or rung.activation_checkpointing
    if recomputes and spec.recipe.has_random_blocks:
        return RANDOM_BLOCKS
    if not shapes:
        return "An epoch has fewer samples than a step, so no step is like the others."
    if len(shapes) > MOST_CAPTURED:
        return (
            f"A step has {len(shapes)} micro-batches, and a graph has a place for each; up to "
            f"{MOST_CAPTURED} are captured."
        )
    if len(shapes) > 1 and data.train.shapes.largest:
        return (
            "Batches of packed arrays come in several shapes, and a step of several micro-batches "
            "in all combinations of them."
        )
    if rung.number and wanted == "auto":
        return "Memory ran out before, and a graph holds memory of its own."
    return None


def capture_step(
    step: TrainingStep, spec: RunSpec, data: DataSet, preparing: Preparing
) -> CaptureOutcome:
    """Have full steps replayed from a graph; where it fails, the step is as it was before.

    Raises NotCaptured; under cuda_graphs always torch.OutOfMemoryError too; StopRequested.
    """
    device = step.precision.device
    shapes = full_step(data.train.plan, spec.training.gradient_accumulation_steps)
    try:
        make_capturable(step.optimizer)
        most = max(shape.size for shape in shapes)
        capturer = GraphCapturer(device)
        statics, outcomes = list[StaticStep](), list[CaptureOutcome]()
        for bucket in data.train.shapes.usual(most):
            static = StaticStep(shapes, partial(_place, step, data, len(shapes), bucket))
            choose = _choices(data, most, bucket, device)
            preparing.piece_done()
            outcomes.append(prove(step, static, choose, spec, capturer, preparing))
            statics.append(static)
        step.static = statics[0] if len(statics) == 1 else StaticSteps(statics)
        outcome = _of_all(outcomes)
        _require_room(outcome.bytes, data, most, device, spec)
    except BaseException as error:
        _launch_again(step)
        if isinstance(error, torch.OutOfMemoryError) and spec.runtime.cuda_graphs == "always":
            raise
        if isinstance(error, RuntimeError):
            logger.exception("the step could not be captured")
            _forget_frames(error)
            raise NotCaptured(_told(error)) from error
        raise
    return outcome


def _place(
    step: TrainingStep, data: DataSet, micro_batches: int, bucket: Bucket, size: int
) -> Batch:
    """The memory that a captured step reads a micro-batch from.

    If a step has one, this is where the loader gathers batches, so they need not be copied. Several
    would overwrite each other there, and get places of their own.
    """
    made_up = step.made_up(size, bucket)
    gathered = data.train.place(size, bucket) if micro_batches == 1 else None
    if gathered is None:
        return made_up
    for name, array in made_up.arrays.items():
        gathered[name].copy_(array)  # valid values, such as indices, until the first batch comes
    return replace(made_up, arrays={name: gathered[name] for name in made_up.arrays})


def _choices(data: DataSet, most: int, bucket: Bucket, device: torch.device) -> Choose:
    """What steps are tried with: samples of the data."""
    if not bucket:
        found = data.first_samples(most)
        return chosen_from(Batch({name: one.to(device) for name, one in found.items()}, most))
    packed = [
        Batch({name: one.to(device) for name, one in arrays.items()}, most)
        for arrays in data.small_batches(most, bucket, STEPS)
    ]
    return lambda size, number: packed[number]


def _of_all(outcomes: Sequence[CaptureOutcome]) -> CaptureOutcome:
    """Of the steps of all shapes; what one of them takes in seconds is that of the largest."""
    held = [one.bytes for one in outcomes if one.bytes is not None]
    return replace(
        outcomes[-1],
        bytes=sum(held) if held else None,
        identical=all(one.identical for one in outcomes),
        graphs=len(outcomes),
    )


class Capturer:
    """Launches a step as it is, where there is nothing to capture it by."""

    bytes: int | None = None

    def aside(self) -> AbstractContextManager[object]:
        """Where steps are launched before one is captured."""
        return nullcontext()

    def capture(self, whole: Replay) -> Replay:
        """What computes `whole` again; it is not computed meanwhile."""
        return whole


class GraphCapturer(Capturer):
    """By PyTorch's way of capturing a whole training step (its notes on CUDA semantics)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # One for all: of graphs that are never replayed at once, and keep nothing in between.
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On the stream of the capture: some of what a first step sets up belongs to its stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def capture(self, whole: Replay) -> Replay:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        gc.collect()  # nothing of the device should be let go of in between
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved(self._device)
        try:
            # Not `global`: what other threads do, as to take page-locked memory, is none of it.
            with torch.cuda.graph(
                graph, self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                whole()
        except BaseException:
            # PyTorch leaves its stream in place, and the random numbers as if still captured.
            torch.cuda.set_stream(current)
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        self.bytes = torch.cuda.memory_reserved(self._device) - reserved
        return graph.replay


def prove(
    step: TrainingStep,
    static: StaticStep,
    choose: Choose,
    spec: RunSpec,
    capturer: Capturer,
    preparing: Preparing,
) -> CaptureOutcome:
    """Capture the step and have it used, if it computes what the launched one does.

    Raises NotCaptured where it does not, RuntimeError where it waits for the device or cannot be
    captured; StopRequested.
    """

    def tried(*, may_wait: bool = False) -> TriedSteps:
        found = try_steps(step, static.shapes, choose, spec.optimizer.lr, may_wait=may_wait)
        preparing.piece_done()
        return found

    step.static = None  # of the shape before
    with capturer.aside():
        tried(may_wait=True)  # once, to have everything set up
        launched = tried()
    static.run_by(capturer.capture(lambda: step.compute(static)))
    preparing.piece_done()
    step.static = static
    replayed = tried()
    wrong = difference(launched, replayed, exact=spec.runtime.deterministic)
    if wrong is not None:
        raise NotCaptured(f"Captured steps did not compute what launched ones do: {wrong}.")
    return CaptureOutcome(
        True,
        bytes=capturer.bytes,
        identical=identical(launched, replayed),
        launched_step_seconds=launched.step_seconds,
        replayed_step_seconds=replayed.step_seconds,
    )


def refused(reason: str) -> str:
    """To a run that insists on a graph."""
    return (
        f"The step cannot be captured as a CUDA graph, and runtime.cuda_graphs is always. {reason} "
        "Set it to auto, which launches the steps then, and restart the run."
    )


def launched_instead(reason: str) -> str:
    """To a run that takes a graph where there can be one."""
    return (
        f"Steps are launched one operation at a time, not replayed from a CUDA graph. {reason} The "
        "training is the same, and slower where its steps are short; runtime.cuda_graphs never "
        "does not try, and trainer.log of the attempt has the details."
    )


def _require_room(
    held: int | None, data: DataSet, batch: int, device: torch.device, spec: RunSpec
) -> None:
    """Raises NotCaptured where what is launched besides might not find its memory."""
    if spec.runtime.cuda_graphs == "always" or held is None:
        return
    held_out = data.validation or data.test
    largest = max(batch, held_out.plan.largest_micro_batch if held_out else 0)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    if free < held * largest / batch:
        raise NotCaptured(
            f"Its graph would hold {in_gib(held)} of its own, and {in_gib(free)} would be left for "
            "evaluations and the last batches of epochs."
        )


def _launch_again(step: TrainingStep) -> None:
    """Take away what a capture, and an attempt at one, leave in the step."""
    step.static = None
    make_plain(step.optimizer)
    step.forget_gradients()
    step.precision.leave_step()
    if step.precision.device.type == "cuda":
        torch.cuda.empty_cache()


def _forget_frames(error: BaseException | None) -> None:
    """Whoever keeps the error would keep the gradients' graph, and so the stream it was on."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _told(error: BaseException) -> str:
    """What went wrong first: a capture that breaks raises another error at its end."""
    while error.__context__ is not None:
        error = error.__context__
    line = str(error).strip().split("\n", 1)[0][:300]
    waits = "synchronizing CUDA operation" in line
    about = "A step waits for the device, which cannot be captured" if waits else "It failed"
    return f"{about}: {line}" if line.endswith(".") else f"{about}: {line}."
