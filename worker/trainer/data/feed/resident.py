"""Data that fits: a whole part in device memory, read once."""

from collections.abc import Generator, Mapping
from contextlib import closing

from torch import Tensor

from worker.trainer.data.batch import ONE_SHAPE, Batch, BatchPlan, BatchShapes, Bucket
from worker.trainer.data.counters import Counters
from worker.trainer.data.feed.order_ahead import OrderAhead
from worker.trainer.data.feed.transfer import Slot, Transfer
from worker.trainer.data.order import Order
from worker.trainer.data.source import OpenSource
from worker.trainer.data.split import Part
from worker.trainer.report.preparing import Preparing


class Resident:
    """Batches of one part, gathered on the device, into one memory; views, where its arrays lie in
    the order in which they are asked for, and as a batch has them.
    """

    def __init__(
        self,
        plan: BatchPlan,
        order: Order,
        part: Part,
        open_source: OpenSource,
        transfer: Transfer,
        preparing: Preparing,
        epochs: int = 1,
        shapes: BatchShapes = ONE_SHAPE,
    ) -> None:
        """Reads the part on the calling thread; `epochs` of the run.

        Raises DataError, DatasetChanged, StopRequested.
        """
        self.plan, self.shapes = plan, shapes
        self.counters = Counters()
        self._order = OrderAhead(order, epochs)
        self._transfer = transfer
        self._shuffled = order.shuffle != "none"
        self._iterations = 0
        rows = part.all_rows()
        slot = transfer.slot_of(rows, len(part) if self._shuffled else 0)
        self._slot: Slot | None = slot
        self._gathered = self._shuffled or slot.view(0, 0) is None
        self._batch = transfer.new_batch(plan.largest_micro_batch * self._gathered, shapes)
        with closing(open_source()) as source:
            try:
                for piece_bytes in transfer.load(source, rows, slot):
                    self.counters.bytes_read += piece_bytes
                    preparing.piece_done()
            finally:
                transfer.end_loading()
                self.counters.copy_seconds = transfer.copy_seconds

    def place(self, size: int, bucket: Bucket) -> Mapping[str, Tensor] | None:
        return self._batch.place(size, bucket) if self._gathered else None

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        self._iterations += 1
        mine = self._iterations
        slot = self._slot_of(mine)
        if self._shuffled:
            # Work that is queued now may still gather by the old places.
            slot.fence.release()
            self._transfer.arrange(slot, self._order.rows(epoch))
        slot.fence.acquire()
        for start, stop in self.plan.bounds(start_position):
            yield Batch(self._arrays(self._slot_of(mine), start, stop), stop - start)

    def close(self) -> None:
        self._order.close()
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
        self._batch.add(slot, start, stop)
        return self._batch.batch()
