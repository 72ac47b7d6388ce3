"""What an exported model gives beside the one it was made of: scores, differences, time a batch."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from app.lifecycle import Reason
from worker.trainer.data.batch import Batch
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.sums import Sums
from worker.trainer.weights.evaluated import Evaluated, Forward, in_place_of, tensors_of

Run = Callable[..., list[Tensor]]
TIMED_ROUNDS, TIMED_SECONDS = 20, 10.0
PYTORCH = "pytorch"
# Of an output's largest value: rounding in another order comes to less.
TOLERANCE = 1e-3


class _Outcome:
    """What one model gave over all batches; of each output its largest difference from PyTorch's,
    and the largest finite value of that.
    """

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        self.differences = self.largest = torch.zeros(1, dtype=torch.float64)

    def compare(self, given: Sequence[Tensor], own: Sequence[Tensor]) -> None:
        """Take in a batch's outputs: PyTorch's, and this model's."""
        apart = torch.stack([difference_of(*pair) for pair in zip(given, own, strict=True)])
        largest = torch.stack([largest_of(one) for one in given])
        self.differences = torch.maximum(self.differences, apart)  # NaN stays
        self.largest = torch.maximum(self.largest, largest)


def compare(
    evaluated: Evaluated, runs: Mapping[str, Run], outputs: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """Of PyTorch's model, then of each other by name: `{model, scores, max_difference}`; and how
    many samples there were. Nothing of the data is kept: each batch goes through all. `outputs`:
    what these are called. TrainerError where a score is not finite, or an output another's.
    """
    found = {name: _Outcome(Sums(evaluated.task)) for name in (PYTORCH, *runs)}
    with torch.inference_mode():
        for batch in evaluated.batches():
            answers = _Answers(evaluated.model.forward)
            found[PYTORCH].sums.add(_measured(evaluated, batch, answers.by_model), batch.size)
            for name, run in runs.items():
                answers.run = run
                found[name].sums.add(_measured(evaluated, batch, answers.by_run), batch.size)
                found[name].compare(answers.given, answers.own)
    told = []
    for name, one in found.items():
        if name != PYTORCH:
            _require_same(name, one, outputs)
        apart = None if name == PYTORCH else float(one.differences.max())
        scores = _scores(evaluated, name, one)
        told.append({"model": name, "scores": scores, "max_difference": apart})
    return told, found[PYTORCH].sums.samples


def _require_same(name: str, found: _Outcome, outputs: Sequence[str]) -> None:
    """The ONNX file computes what PyTorch does; of int8 the scores say how far it does."""
    pairs = zip(found.differences.tolist(), found.largest.tolist(), strict=True)
    for output, (apart, largest) in zip(outputs, pairs, strict=True):
        how = f"differs by up to {apart:.3g}, and is at most {largest:.3g}"
        if not math.isfinite(apart):
            how = "is not finite where the model's is, or the other way round"
        elif name != "onnx" or apart <= TOLERANCE * max(largest, 1e-6):
            continue
        raise TrainerError(
            Reason.trainer_error,
            f"The {name.upper()} file does not compute what the model does: its output {output} "
            f"{how}. Nothing was kept of it; export it as safetensors.",
        )


def _measured(evaluated: Evaluated, batch: Batch, forward: Forward) -> Mapping[str, Tensor]:
    with evaluated.called_as(forward):
        return evaluated.task.measure(evaluated.model, batch)


def _scores(evaluated: Evaluated, model: str, found: _Outcome) -> dict[str, float]:
    scores = found.sums.scores()
    if broken := [name for name, score in scores.items() if not math.isfinite(score)]:
        whose = "the checkpoint's model" if model == PYTORCH else f"the {model.upper()} file"
        advice = "Choose another checkpoint" if model == PYTORCH else "Export it as safetensors"
        raise TrainerError(
            Reason.nonfinite,
            f"The {', '.join(broken)} of {whose} on the {evaluated.name} part is not finite, so "
            f"nothing was kept of the export. {advice}.",
        )
    return scores


class _Answers:
    """The model's own answer to a batch, and that of another beside it."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._given: Any = None
        self._calls = 0
        self.run: Run | None = None
        self.given: list[Tensor] = []
        self.own: list[Tensor] = []

    def by_model(self, *inputs: Tensor) -> Any:
        """Once a batch, or what is measured elsewhere would be something else."""
        self._calls += 1
        if self._calls > 1:
            raise _not_once("more than once")
        self._given = self._forward(*inputs)
        self.given = tensors_of(self._given)
        return self._given

    def by_run(self, *inputs: Tensor) -> Any:
        if self._given is None or self.run is None:
            raise _not_once("in another way")
        self.own = self.run(*inputs)
        return in_place_of(self._given, self.own)


def _not_once(how: str) -> TrainerError:
    return TrainerError(
        Reason.trainer_error,
        f"The recipe's measure calls its model {how}, so it cannot be told what an export of it "
        "scores. Have measure call the model once a batch, `model(*inputs)`, in the recipe's "
        "package; or export it as safetensors.",
    )


def difference_of(one: Tensor, other: Tensor) -> Tensor:
    """The largest absolute one; equal infinities do not differ, nor does NaN from NaN."""
    is_same = (one == other) | (one.isnan() & other.isnan())
    apart = torch.where(is_same, 0.0, (one.double() - other.double()).abs())
    return apart.max() if apart.numel() else torch.zeros((), dtype=torch.float64)


def largest_of(one: Tensor) -> Tensor:
    """The largest absolute value that is finite."""
    size = one.double().abs()
    finite = torch.where(size.isfinite(), size, 0.0)
    return finite.max() if finite.numel() else torch.zeros((), dtype=torch.float64)


def time_each(runs: Mapping[str, Run], inputs: Sequence[Tensor]) -> dict[str, float]:
    """Seconds of a batch, the median of rounds in which each takes its turn."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for run in runs.values():
            run(*inputs)  # what is made once
        began = time.perf_counter()
        for _ in range(TIMED_ROUNDS):
            for name, run in runs.items():
                start = time.perf_counter()
                run(*inputs)
                seconds[name].append(time.perf_counter() - start)
            if time.perf_counter() - began > TIMED_SECONDS:
                break
    return {name: statistics.median(each) for name, each in seconds.items()}
