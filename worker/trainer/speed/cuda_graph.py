"""Captures a whole step as a CUDA graph, and proves before the first one that it computes the same.

A graph that is wrong trains on without a word. So none is used that was not tried on this device:
a few steps are launched one operation at a time, and once more by the graph
(worker.trainer.speed.proof).
"""

import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from app.planning.ladder import Rung
from app.planning.residency import in_gib
from app.spec.run import RunSpec
from app.spec.runtime import MOST_CAPTURED
from worker.trainer.checkpoints.exactness import keeps_dropout_to_itself
from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import DataSet
from worker.trainer.optimizers import make_capturable, make_plain
from worker.trainer.preparing import Preparing
from worker.trainer.speed.proof import TriedSteps, difference, identical, try_steps
from worker.trainer.speed.static_step import StaticStep, full_step
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
            "The dropout between the encoder's layers is drawn from a state of cuDNN that cannot "
            "be put back, so a captured step could not be compared with a launched one."
        )
    if spec.runtime.activation_checkpointing or rung.activation_checkpointing:
        return "Activations are computed anew with random numbers that are put back from the host."
    if not shapes:
        return "An epoch has fewer samples than a step, so no step is like the others."
    if len(shapes) > MOST_CAPTURED:
        return (
            f"A step has {len(shapes)} micro-batches, and a graph has a place for each; up to "
            f"{MOST_CAPTURED} are captured."
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
        static = StaticStep(shapes, step.made_up)
        most = max(shape.size for shape in shapes)
        found = data.first_samples(most)
        samples = Batch({name: array.to(device) for name, array in found.items()}, most)
        preparing.piece_done()
        capturer = GraphCapturer(device)
        outcome = prove(step, static, samples, spec, capturer, preparing)
        _require_room(capturer.bytes, data, most, device, spec)
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
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
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
    samples: Batch,
    spec: RunSpec,
    capturer: Capturer,
    preparing: Preparing,
) -> CaptureOutcome:
    """Capture the step and have it used, if it computes what the launched one does.

    Raises NotCaptured where it does not, RuntimeError where it waits for the device or cannot be
    captured; StopRequested.
    """

    def tried(*, may_wait: bool = False) -> TriedSteps:
        found = try_steps(step, static.shapes, samples, spec.optimizer.lr, may_wait=may_wait)
        preparing.piece_done()
        return found

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
    step.optimizer.zero_grad(set_to_none=True)
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
