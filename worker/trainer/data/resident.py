"""Data that fits: a whole part in device memory, read once."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing

from torch import Tensor

from worker.trainer.data.batch import Batch, BatchPlan
from worker.trainer.data.counters import Counters
from worker.trainer.data.group_source import as_groups, groups_of
from worker.trainer.data.order import Order
from worker.trainer.data.order_ahead import OrderAhead
from worker.trainer.data.source import Field, OpenSource, Rows, Source
from worker.trainer.data.split import Part
from worker.trainer.data.transfer import Slot, Transfer, rows_of
from worker.trainer.data.windows import load_series
from worker.trainer.preparing import Preparing


class Resident:
    """Batches of one part, gathered on the device, into one memory; in plain order views.

    What the file keeps as a series stays one: its windows are cut out for each batch.
    """

    def __init__(
        self,
        plan: BatchPlan,
        order: Order,
        part: Part,
        open_source: OpenSource,
        make_transfer: Callable[[Mapping[str, Field]], Transfer],
        preparing: Preparing,
        epochs: int = 1,
    ) -> None:
        """Reads the part on the calling thread; `epochs` of the run.

        Raises DataError, DatasetChanged, StopRequested.
        """
        self.plan = plan
        self.counters = Counters()
        self._order = OrderAhead(order, epochs)
        self._make_transfer = make_transfer
        self._shuffled = order.shuffle != "none"
        self._iterations = 0
        with closing(open_source()) as source:
            groups, rows = groups_of(source), part.all_rows()
            kept = {name: f for name, f in source.fields.items() if name not in groups.windows}
            self._transfer = make_transfer(kept)
            places = len(part) if self._shuffled else 0
            room = {name: int(one.lengths_at(rows).sum()) for name, one in groups.ragged.items()}
            slot = self._transfer.new_slot(len(part), places, room)
            self._slot: Slot | None = slot
            gathered = self._shuffled or groups.windows or groups.ragged
            size = plan.largest_micro_batch if gathered else 0
            self._batch = make_transfer(source.fields).new_batch(size)
            try:
                for piece_bytes in self._load(source, rows, slot):
                    self.counters.bytes_read += piece_bytes
                    preparing.piece_done()
            finally:
                self._transfer.end_loading()
                self.counters.copy_seconds = self._transfer.copy_seconds

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        self._iterations += 1
        mine = self._iterations
        slot = self._slot_of(mine)
        if self._shuffled:
            # Work that is queued now may still gather by the old places.
            self._transfer.release(slot)
            self._transfer.arrange(slot, self._order.rows(epoch))
        self._transfer.acquire(slot)
        for start, stop in self.plan.bounds(start_position):
            yield Batch(self._arrays(self._slot_of(mine), start, stop), stop - start, stop)

    def close(self) -> None:
        self._order.close()
        self._transfer.close()
        self._slot = None

    def _load(self, source: Source, rows: Rows, slot: Slot) -> Iterator[int]:
        if groups_of(source).windows:
            yield from load_series(as_groups(source), rows, slot, self._make_transfer)
        if slot.arrays:
            yield from self._transfer.load(source, rows, slot)

    def _slot_of(self, iteration: int) -> Slot:
        if self._slot is None or iteration != self._iterations:
            raise RuntimeError("another iteration of this part has begun, or it was closed")
        return self._slot

    def _arrays(self, slot: Slot, start: int, stop: int) -> dict[str, Tensor]:
        view = slot.view(start, stop)
        if view is not None:
            return view
        is_whole = stop - start == self.plan.largest_micro_batch
        batch = self._batch if is_whole else rows_of(self._batch, 0, stop - start)
        slot.gather(start, stop, batch)
        return batch
