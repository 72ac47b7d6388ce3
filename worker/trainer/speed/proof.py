"""A few steps tried before the training, and what two ways of computing them differ in."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.trainer.data.batch import Batch
from worker.trainer.randomness import RandomState
from worker.trainer.speed.preserved_state import state_preserved
from worker.trainer.speed.static_step import MicroBatchShape
from worker.trainer.step import TrainingStep

STEPS = 4
# Of the losses and gradient norms, and of the way that weights and moments went. One step with the
# learning rate or the batch of another is many times as far off, and sums in another order are not.
LARGEST_ERROR, LARGEST_DISTANCE = 1e-3, 0.02

Tensors = dict[str, list[Tensor]]
Choose = Callable[[int, int], Batch]
"""A batch of so many samples, on the device: another choice of them for each number."""


@dataclass(frozen=True)
class TriedSteps:
    """What the steps gave; tensors are on the host."""

    figures: Tensor
    """(steps, …): the sums of the losses with their weights, and the norm of the gradients."""
    before: Tensors
    after: Tensors
    random: Tensor
    scale: Mapping[str, object]
    step_seconds: float


def try_steps(
    step: TrainingStep,
    shapes: Sequence[MicroBatchShape],
    choose: Choose,
    learning_rate: float,
    *,
    may_wait: bool = False,
) -> TriedSteps:
    """Steps of other batches and other learning rates each, and no trace of them.

    Unless it `may_wait`, RuntimeError where a step waits for the device.
    """
    device, figures = step.precision.device, []
    state = _state(step)
    kept = [tensor for tensors in state.values() for tensor in tensors]
    with state_preserved(step, (*kept, step.loss_sums, step.grad_norm)):
        before, began = _on_host(state), _now(device)
        with _waiting_is_an_error(device, allowed=may_wait):
            for number in range(STEPS):
                for place, (size, share) in enumerate(shapes):
                    step.accumulate(choose(size, number + place), share)
                step.apply(learning_rate * (number + 1) / STEPS)
                figures.append(torch.cat((step.loss_sums.flatten(), step.grad_norm.double()[None])))
        seconds = (_now(device) - began) / STEPS
        return TriedSteps(
            torch.stack(figures).cpu(),
            before,
            _on_host(state),
            _random_state(device),
            step.precision.scaler.state_dict(),
            seconds,
        )


def difference(expected: TriedSteps, found: TriedSteps, *, exact: bool) -> str | None:
    """What is wrong with those that were `found`, None where they are right; `exact`: to the last
    bit. A test that could show nothing is not right either.
    """
    if not expected.figures[:, 0].isfinite().all():
        return "their losses are not finite and cannot be compared"
    if expected.scale != found.scale:
        return "their loss scales differ"
    if not torch.equal(expected.random, found.random):
        return "they draw other random numbers"
    error = _relative_error(expected.figures, found.figures)
    if not error <= LARGEST_ERROR:
        return f"their losses or gradients are off by {error:.2%}"
    for name, tensors in expected.after.items():
        apart = _distance(tensors, found.after[name])
        went = _distance(tensors, expected.before[name])
        if name == "weights" and not went:
            return "they leave the weights where they are, and so show nothing"
        if not apart <= LARGEST_DISTANCE * went:
            return f"their {name} ended {apart:.3g} apart, {went:.3g} from where they began"
    if exact and not identical(expected, found):
        return "they differ in the last bits, which runtime.deterministic does not allow"
    return None


def identical(one: TriedSteps, other: TriedSteps) -> bool:
    """To the last bit."""
    pairs = [(one.figures, other.figures)]
    for name, tensors in one.after.items():
        pairs += zip(tensors, other.after[name], strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def _state(step: TrainingStep) -> Tensors:
    """By kind: the model's, and each that the optimizer keeps of a parameter."""
    found: Tensors = {"weights": [*step.model.parameters(), *step.model.buffers()]}
    for state in step.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor):
                found.setdefault(name, []).append(value)
    return found


def _on_host(state: Tensors) -> Tensors:
    return {
        name: [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        for name, tensors in state.items()
    }


def _relative_error(expected: Tensor, found: Tensor) -> float:
    """The largest; a step that fp16 skips has no finite gradients, in both."""
    both_nan = expected.isnan() & found.isnan()
    error = (expected - found).abs() / expected.abs()
    return float(error.where((expected != found) & ~both_nan, 0.0).max())


def _distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    pairs = zip(one, other, strict=True)
    return math.sqrt(sum(float((a.double() - b.double()).square().sum()) for a, b in pairs))


def chosen_from(samples: Batch) -> Choose:
    """Of samples on the device, as many as the largest micro-batch has: the first half of them
    twice, the first third thrice, …
    """

    def choose(size: int, number: int) -> Batch:
        found = {}
        for name, array in samples.arrays.items():
            found[name] = array[torch.arange(size, device=array.device) // (number + 1)]
        return Batch(found, size)

    return choose


def _random_state(device: torch.device) -> Tensor:
    """Of what steps draw from: the device's generator, Python's and NumPy's."""
    found = RandomState.now(device).tensors()
    if device.type == "cuda":
        del found["rng.cpu"]
    return torch.cat(list(found.values()))


def _now(device: torch.device) -> float:
    """When all that was launched so far is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


@contextmanager
def _waiting_is_an_error(device: torch.device, *, allowed: bool) -> Iterator[None]:
    if device.type != "cuda" or allowed:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
