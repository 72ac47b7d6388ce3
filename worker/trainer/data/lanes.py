"""Where in a batch in lanes another series begins: what a place carries ends there."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.trainer.data.order import Order
from worker.trainer.data.source import Rows
from worker.trainer.data.split import Part


@dataclass(frozen=True)
class LaneBreaks:
    """Of the whole batches of an epoch; the same in every epoch, for lanes are not shuffled."""

    marks: NDArray[np.bool_]
    """(batches, lanes): the sample does not go on where the one before it in its lane ended."""
    device: torch.device
    _marks: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_marks", torch.from_numpy(self.marks).to(self.device))

    def at(self, position: int) -> Tensor | None:
        """Bool (lanes,) on the device, of the batch that begins at this position of the epoch; None
        where all go on.
        """
        batch = position // self.marks.shape[1]
        if batch >= len(self.marks) or not self.marks[batch].any():
            return None
        return self._marks[batch]


def lane_breaks(
    order: Order, part: Part, lanes: int, breaks: Rows, device: torch.device
) -> LaneBreaks:
    """`breaks`: the samples of the dataset at which another series begins. Samples that are no
    neighbours in the dataset do not go on either. An epoch begins everywhere anyway, unmarked.
    """
    batches = len(part) // lanes
    rows = part.take(order.rows(0, 0, batches * lanes)).reshape(batches, lanes)
    marks = np.zeros(rows.shape, np.bool_)
    marks[1:] = (rows[1:] != rows[:-1] + 1) | np.isin(rows[1:], breaks)
    return LaneBreaks(marks, device)
