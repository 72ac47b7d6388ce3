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
from worker.trainer.weights.evaluated import Evaluated, Forward, in_place_of, tensors_of

Run = Callable[..., list[Tensor]]
TIMED_ROUNDS, TIMED_SECONDS = 20, 10.0
PYTORCH = "pytorch"


class _Sums:
    """What one model gave over all batches."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.samples = 0
        self.difference = 0.0

    def add(self, measured: Mapping[str, Tensor], size: int) -> None:
        self.samples += size
        for name, one in measured.items():
            self.sums[name] = self.sums.get(name, 0) + one.double()


def compare(evaluated: Evaluated, runs: Mapping[str, Run]) -> tuple[list[dict[str, Any]], int]:
    """Of PyTorch's model, then of each other by name: `{model, scores, max_difference}`; and how
    many samples there were. Nothing of the data is kept: each batch goes through all.
    """
    found = {name: _Sums() for name in (PYTORCH, *runs)}
    with torch.inference_mode():
        for batch in evaluated.batches():
            answers = _Answers(evaluated.model.forward)
            found[PYTORCH].add(_measured(evaluated, batch, answers.by_model), batch.size)
            for name, run in runs.items():
                answers.run = run
                found[name].add(_measured(evaluated, batch, answers.by_run), batch.size)
                found[name].difference = max(found[name].difference, answers.difference)
    told = [
        {
            "model": name,
            "scores": _scores(evaluated, one),
            "max_difference": None if name == PYTORCH else one.difference,
        }
        for name, one in found.items()
    ]
    return told, found[PYTORCH].samples


def _measured(evaluated: Evaluated, batch: Batch, forward: Forward) -> Mapping[str, Tensor]:
    with evaluated.called_as(forward):
        return evaluated.task.measure(evaluated.model, batch)


def _scores(evaluated: Evaluated, found: _Sums) -> dict[str, float]:
    sums = {name: one.item() for name, one in found.sums.items()}
    scores = evaluated.task.scores(sums, found.samples)
    if broken := [name for name, score in scores.items() if not math.isfinite(score)]:
        raise TrainerError(
            Reason.nonfinite,
            f"The {', '.join(broken)} on the {evaluated.name} part is not finite, so nothing can "
            "be said of an export. Choose another checkpoint.",
        )
    return scores


class _Answers:
    """The model's own answer to a batch, and that of another beside it."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._given: Any = None
        self._calls = 0
        self.run: Run | None = None
        self.difference = 0.0

    def by_model(self, *inputs: Tensor) -> Any:
        """Once a batch, or what is measured elsewhere would be something else."""
        self._calls += 1
        if self._calls > 1:
            raise _not_once("more than once")
        self._given = self._forward(*inputs)
        return self._given

    def by_run(self, *inputs: Tensor) -> Any:
        if self._given is None or self.run is None:
            raise _not_once("in another way")
        tensors = self.run(*inputs)
        pairs = zip(tensors_of(self._given), tensors, strict=True)
        self.difference = max(_difference(*pair) for pair in pairs)
        return in_place_of(self._given, tensors)


def _not_once(how: str) -> TrainerError:
    return TrainerError(
        Reason.trainer_error,
        f"The recipe's measure calls its model {how}, so it cannot be told what an export of it "
        "scores. Have measure call the model once a batch, `model(*inputs)`, in the recipe's "
        "package; or export it as safetensors.",
    )


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute one; equal infinities do not differ."""
    apart = torch.where(one == other, 0.0, (one.double() - other.double()).abs())
    return float(apart.max()) if apart.numel() else 0.0


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
