"""What is told of an exported model: a difference of each output, and scores that are finite."""

from collections.abc import Callable, Iterator, Sequence
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from worker.trainer.data.batch import Batch
from worker.trainer.errors import TrainerError
from worker.trainer.weights.evaluated import Evaluated
from worker.trainer.weights.measuring import compare

OUTPUTS = ("policy", "value")
Rows = Sequence[Sequence[float]]


class Given(nn.Module):
    """Answers with what it is given."""

    def forward(self, policy: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return policy, value


class Plain(Evaluated):
    """Of batches that are given, without a run."""

    def batches(self) -> Iterator[Batch]:
        yield from self.part  # type: ignore[misc]


class Measured:
    """Of a task, what is asked of it to compare."""

    spec = SimpleNamespace(evaluation=SimpleNamespace(metrics=()))
    recipe = SimpleNamespace(kind="odd")

    def __init__(self, sums: Callable[[nn.Module, Batch], dict[str, Tensor]]) -> None:
        self._sums = sums

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self._sums(model, batch)

    def scores(self, sums: dict[str, float], samples: int) -> dict[str, float]:
        return sums


def told(batches: Sequence[Rows], others: Sequence[Rows], name: str = "onnx") -> dict[str, Any]:
    """What is told of a model that answers with `others` to `batches`, each a row an output."""

    def measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        _, value = model(*(batch.arrays[output] for output in OUTPUTS))
        return {"loss": value.sum()}

    def given(rows: Rows) -> dict[str, Tensor]:
        return {key: torch.tensor(row) for key, row in zip(OUTPUTS, rows, strict=True)}

    task: Any = Measured(measure)
    part: Any = [Batch(given(rows), 1) for rows in batches]
    answers = iter([list(given(rows).values()) for rows in others])
    evaluated = Plain(None, task, Given(), "validation", part, {})  # type: ignore[arg-type]
    models, samples = compare(evaluated, {name: lambda *_: next(answers)}, OUTPUTS)
    assert samples == len(batches)
    found: dict[str, Any] = models[1]
    return found


SAME: Rows = [[-inf, 4.0, nan], [0.5]]


@pytest.mark.parametrize("name", ["onnx", "int8"])
@pytest.mark.parametrize("broken", [nan, inf, -inf])
def test_an_output_that_is_not_finite_is_no_difference_of_0(name: str, broken: float) -> None:
    with pytest.raises(TrainerError, match=f"The {name.upper()} file .* policy is not finite whe"):
        told([SAME, SAME], [[[-inf, broken, nan], [0.5]], SAME], name)


def test_a_score_that_is_not_finite_is_told_of_its_model() -> None:
    large = [[1.0], [3e38, 3e38]]
    with pytest.raises(TrainerError, match=r"The loss of the checkpoint's model .* Choose another"):
        told([large], [large])
    near = [[1.0], [3.4e38, 0.0]]
    with pytest.raises(TrainerError, match=r"The loss of the ONNX file on .* as safetensors"):
        told([near], [[[1.0], [3.4e38, 3.3e35]]])


def test_each_output_is_held_to_its_own_largest_value_of_all_batches() -> None:
    small: Rows = [[1000.0], [0.001]]
    with pytest.raises(TrainerError, match=r"output value differs by up to 0\.1, .* at most 0\.0"):
        told([small], [[[1000.0], [0.101]]])
    # The largest comes with the second batch, and so does an infinity, which is no bound.
    pair = [[[0.1], [0.5]], [[1000.0, -inf], [0.5]]]
    found = told(pair, [[[0.6], [0.5]], [[1000.0, -inf], [0.5]]])
    assert found["max_difference"] == pytest.approx(0.5)
    with pytest.raises(TrainerError, match="output policy differs by up to 2, and is at most 1e"):
        told(pair, [[[0.1], [0.5]], [[1002.0, -inf], [0.5]]])
    assert told(pair, [[[0.1], [0.5]], [[1002.0, -inf], [0.5]]], "int8")["max_difference"] == 2.0


def test_sums_that_are_none_are_told_of_the_recipe() -> None:
    task: Any = Measured(lambda model, batch: {"loss": model(*batch.arrays.values())[1]})
    part: Any = [Batch({name: torch.ones(2) for name in OUTPUTS}, 2)]
    evaluated = Plain(None, task, Given(), "validation", part, {})  # type: ignore[arg-type]
    with pytest.raises(
        TrainerError, match=r"Measured\.scores of the recipe odd gave for 'loss' a tensor of shape"
    ):
        compare(evaluated, {}, OUTPUTS)
