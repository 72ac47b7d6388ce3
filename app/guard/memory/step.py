"""What a step takes beside what is exact: by coefficients, or as one real step was measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from app.guard.memory.budget import STEPS, Item
from app.guard.memory.measured import Measured, lines_through
from app.guard.memory.model_size import (
    EVALUATION_ON_CPU,
    EVALUATION_ON_CUDA,
    TRAINING_ON_CPU,
    TRAINING_ON_CUDA,
    SequenceSize,
)
from app.planning.imports import Imports
from app.planning.residency import MIB
from app.spec.run import RunSpec

# What PyTorch's kernels and threads hold, and what the heap does not give back, over 40 steps with
# an evaluation after every sixth; oneDNN runs the LSTM alone.
LIBRARIES_BYTES = {"lstm": 43 * MIB, "gru": 44 * MIB}
# What a step frees is not always where the next looks for it: so many copies of a batch in runs of
# 60 and more steps, each of so much at most: the kernel has larger blocks back
# (worker/launch/local.py).
HOLES, MOST_IN_HEAP_BYTES = 2.5, 32 * MIB
# What the heap keeps of the copies that oneDNN makes of the weights in its own order, measured with
# 19 to 66 million weights: 0.3 to 0.9 of their bytes.
WEIGHTS_REARRANGED = 0.6
# Not measured on a GPU yet: the workspaces of cuBLAS and cuDNN.
CUDA_WORKSPACE_BYTES = 96 * MIB


@dataclass(frozen=True)
class Step:
    """Beside weights, gradients, optimizer and batches; of `fixed` only holes are of the batch."""

    fixed: tuple[Item, ...]
    activations: int
    evaluation: int
    accumulating: int = 0
    """What a step of several batches takes more; the coefficients have it in the gradients."""

    @property
    def fixed_bytes(self) -> int:
        return sum(item.bytes for item in self.fixed)


Reckon = Callable[[int, int], Step]
"""From the samples of a batch of training and of evaluation."""


def on_cpu(model: SequenceSize, imports: Imports, sample_bytes: int) -> Reckon:
    """By the coefficients of a CPU."""

    def holes(batch: int) -> Item:
        holding = HOLES * min(batch * sample_bytes, MOST_IN_HEAP_BYTES)
        return Item("heap_holes", int(holding), STEPS)

    fixed = (
        Item("libraries", LIBRARIES_BYTES[model.spec.recipe.encoder], STEPS),
        Item("compiler", compiler_bytes(model.spec, imports), STEPS),
        Item("rearranged_weights", int(WEIGHTS_REARRANGED * model.weights_bytes), STEPS),
    )
    return lambda batch, looked_at: Step(
        (holes(batch), *fixed),
        model.activations_bytes(batch, TRAINING_ON_CPU),
        model.activations_bytes(looked_at, EVALUATION_ON_CPU),
    )


def compiler_bytes(spec: RunSpec, imports: Imports) -> int:
    """On the host, whatever the device."""
    return 0 if spec.runtime.compile.mode == "none" else imports.compiler


def on_cuda(model: SequenceSize, element_bytes: int) -> Reckon:
    """By the formulas of a GPU, for states of so many bytes each."""
    fixed = (
        Item("workspace", CUDA_WORKSPACE_BYTES, STEPS),
        Item("fp16_weights", model.encoder_parameters * 2 if element_bytes == 2 else 0, STEPS),
    )
    return lambda batch, looked_at: Step(
        fixed,
        model.activations_bytes(batch, TRAINING_ON_CUDA, element_bytes),
        model.activations_bytes(looked_at, EVALUATION_ON_CUDA, element_bytes),
    )


def as_measured(
    measured: Measured, model: SequenceSize, sample_bytes: int, free: int, planned: Reckon
) -> Reckon:
    """As a worker measured it; where memory ran out, `planned` raised to more than is `free`."""
    if measured.training is None:
        return _raised(measured, model, sample_bytes, free, planned)
    lines = lines_through(
        measured.training,
        measured.accumulating_bytes,
        measured.evaluation,
        model.weights_bytes,
        model.optimizer_bytes,
        model.gradients_bytes,
    )
    fixed = (Item("libraries", lines.fixed_bytes, STEPS),)
    several = model.spec.training.gradient_accumulation_steps > 1

    def reckoned(batch: int, looked_at: int) -> Step:
        return Step(
            fixed,
            max(0, int((lines.training_sample_bytes - sample_bytes) * batch)),
            max(0, int((lines.evaluation_sample_bytes - sample_bytes) * looked_at)),
            lines.accumulating_bytes if several else 0,
        )

    return reckoned


def _raised(
    measured: Measured, model: SequenceSize, sample_bytes: int, free: int, planned: Reckon
) -> Reckon:
    """Activations so many times those planned that the batch which failed takes more than is free.

    That is the least that they can be, so a smaller batch which fits by it may still not fit.
    """
    if measured.ran_out is None:
        return planned
    phase, batch, _ = measured.ran_out
    at = planned(batch, batch)
    beside = at.fixed_bytes + model.weights_bytes + model.optimizer_bytes + batch * sample_bytes
    if phase == "evaluating":
        factor = max(1.0, (free + 1 - beside) / at.evaluation)
    else:
        factor = max(1.0, (free + 1 - beside - model.gradients_bytes) / at.activations)

    def reckoned(size: int, looked_at: int) -> Step:
        step = planned(size, looked_at)
        if phase == "evaluating":
            return replace(step, evaluation=int(factor * step.evaluation) + 1)
        return replace(step, activations=int(factor * step.activations) + 1)

    return reckoned
