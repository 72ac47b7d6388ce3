"""Sums of an evaluation: what a task measured, added up over the batches of a part."""

from collections.abc import Mapping

import torch
from torch import Size, Tensor

from worker.trainer.recipes.base import Task
from worker.trainer.recipes.contract import require_sums, scores_of


class Sums:
    """Adds up what `Task.measure` gave, in one float64 vector that stays on the device."""

    def __init__(self, task: Task) -> None:
        self.samples = 0
        self._task = task
        self._shapes: dict[str, Size] = {}
        self._sum: Tensor | None = None

    def add(self, measured: Mapping[str, Tensor], samples: int) -> None:
        """Raises TrainerError unless names and shapes are those of the first batch."""
        require_sums(self._task, measured, self._shapes)
        values = list(measured.values())
        if self._sum is None:
            self._shapes = {name: one.shape for name, one in measured.items()}
        is_scalar = all(not shape for shape in self._shapes.values())
        row = torch.stack(values) if is_scalar else torch.cat([one.reshape(-1) for one in values])
        self._sum = row.double() if self._sum is None else self._sum + row
        self.samples += samples

    def totals(self) -> dict[str, float | Tensor]:
        """Returns a number for each scalar, and a tensor on the CPU for each other sum. Waits for
        the device, once.
        """
        if self._sum is None:
            return {}
        sizes = [shape.numel() for shape in self._shapes.values()]
        pieces = torch.split(self._sum.cpu(), sizes)
        return {
            name: piece.view(shape) if shape else float(piece)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }

    def scores(self) -> dict[str, float]:
        """Returns those of `Task.scores` over the part. Raises what it raises."""
        return scores_of(self._task, self.totals(), self.samples)
