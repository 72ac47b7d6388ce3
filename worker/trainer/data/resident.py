"""Data that fits: a whole part in device memory, read once."""

from collections.abc import Generator

import numpy as np
from torch import Tensor

from worker.trainer.data.batch import Batch, BatchPlan
from worker.trainer.data.counters import Counters
from worker.trainer.data.order import Order
from worker.trainer.data.source import OpenSource
from worker.trainer.data.split import Part
from worker.trainer.data.transfer import Slot, Transfer, rows_of
from worker.trainer.preparing import Preparing


class Resident:
    """Batches of one part, gathered on the device, into one memory; in plain order views."""

    def __init__(
        self,
        plan: BatchPlan,
        order: Order,
        part: Part,
        open_source: OpenSource,
        transfer: Transfer,
        preparing: Preparing,
    ) -> None:
        """Reads the part on the calling thread. Raises DataError, DatasetChanged, StopRequested."""
        self.plan = plan
        self.counters = Counters()
        self._order = order
        self._transfer = transfer
        self._shuffled = order.shuffle != "none"
        self._iterations = 0
        places = len(part) if self._shuffled else 0
        self._slot: Slot | None = transfer.new_slot(len(part), places)
        size = min(plan.batch_size, plan.num_samples) if self._shuffled else 0
        self._batch = transfer.new_batch(size)
        source = open_source()
        try:
            rows = part.take(np.arange(len(part)))
            for piece_bytes in transfer.load(source, rows, self._slot):
                self.counters.bytes_read += piece_bytes
                preparing.piece_done()
        finally:
            source.close()
            transfer.end_loading()
            self.counters.copy_seconds = transfer.copy_seconds

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        self._iterations += 1
        mine = self._iterations
        slot = self._slot_of(mine)
        if self._shuffled:
            # Work that is queued now may still gather by the old places.
            self._transfer.release(slot)
            self._transfer.arrange(slot, self._order.rows(epoch, 0, self._order.num_samples))
        self._transfer.acquire(slot)
        for start, stop in self.plan.bounds(start_position):
            yield Batch(self._arrays(self._slot_of(mine), start, stop), stop - start, stop)

    def close(self) -> None:
        self._transfer.close()
        self._slot = None

    def _slot_of(self, iteration: int) -> Slot:
        if self._slot is None or iteration != self._iterations:
            raise RuntimeError("another iteration of this part has begun, or it was closed")
        return self._slot

    def _arrays(self, slot: Slot, start: int, stop: int) -> dict[str, Tensor]:
        view = slot.view(start, stop)
        if view is not None:
            return view
        batch = rows_of(self._batch, 0, stop - start)
        slot.gather(start, stop, batch)
        return batch
