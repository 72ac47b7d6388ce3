"""The thread that reads chunks ahead of the loop: its owner, its bounded queues, its end."""

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from worker.trainer.data.batch_memory import BatchMemory
from worker.trainer.data.counters import Counters
from worker.trainer.data.feed.transfer import Slot, Transfer
from worker.trainer.data.order import Order
from worker.trainer.data.source import OpenSource, Source
from worker.trainer.data.split import Part

# While a chunk is used up the next is read: a model that takes samples at an eighth of the rate at
# which they are read never waits for one.
GROWTH = 8
# Between two polls of what a wait is for.
POLL_SECONDS = 0.001


@dataclass(frozen=True)
class ChunkPlan:
    """What to read: `part` in `order`, at most `chunk_samples` at a time.

    `first_samples`: of an iteration's first chunk, so that its first batch need not wait for more;
    each after it has GROWTH times as many as the one before, as far as its slot goes. `epochs`: of
    the run; while the last chunk of one is used up the first of the next is read.
    """

    open_source: OpenSource
    part: Part
    order: Order
    chunk_samples: int
    first_samples: int
    epochs: int = 1


@dataclass(frozen=True)
class DeviceMemory:
    """Slots that take turns, and a batch for what lies scattered in them."""

    slots: Sequence[Slot]
    batch: BatchMemory


@dataclass(frozen=True)
class _Chunk:
    """Positions [start, stop) of the epoch, loaded in `slot`."""

    slot: Slot
    start: int
    stop: int


class _Closed(Exception):
    """Ends the thread from inside when the owner wants no more."""


class ChunkReader:
    """Reads positions [start, stop) of an epoch into the slots, while earlier ones are gathered;
    then [0, stop) of the next one, up to the last.

    A slot travels reader → ready → consumer → free → reader, so both queues are bounded by the
    number of slots. Whatever ends the thread early is raised by the next `gather`.
    """

    def __init__(
        self,
        plan: ChunkPlan,
        transfer: Transfer,
        memory: DeviceMemory,
        counters: Counters,
        span: tuple[int, int, int],
    ) -> None:
        """`span` is (epoch, start, stop). The thread runs until `close`, which must be called."""
        self._plan = plan
        self._transfer = transfer
        self._counters = counters
        self._span = span
        self.next_epoch: int | None = None
        """At the beginning of which it stands; None: in an epoch, or after the last."""
        self._free: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[_Chunk | BaseException] = queue.SimpleQueue()
        for slot in memory.slots:
            self._free.put(slot)
        self._batch = memory.batch
        self._chunk: _Chunk | None = None
        self._viewed: _Chunk | None = None  # all of it was handed out, the last of it as a view
        self._closing = threading.Event()
        # A daemon only so that an interpreter that exits without `close` is not held up.
        self._thread = threading.Thread(target=self._run, name="chunk-reader", daemon=True)
        self._thread.start()

    def end_epoch(self, epoch: int) -> None:
        """All of it was gathered."""
        if self._viewed:
            self._release(self._viewed)
        self.next_epoch = epoch + 1 if epoch + 1 < self._plan.epochs else None

    def gather(self, start: int, stop: int) -> dict[str, Tensor]:
        """The samples at positions [start, stop), which follow those of the call before; their
        memory is used again at the next call.
        """
        self.next_epoch = None
        if self._viewed:
            self._release(self._viewed)
        chunk = self._chunk or self._next_chunk()
        if stop <= chunk.stop:
            view = chunk.slot.view(start - chunk.start, stop - chunk.start)
            if view is not None:
                self._viewed = chunk if stop == chunk.stop else None
                return view
        return self._copied(start, stop)

    def _copied(self, start: int, stop: int) -> dict[str, Tensor]:
        self._batch.begin()
        while start < stop:
            chunk = self._chunk or self._next_chunk()
            end = min(stop, chunk.stop)
            self._batch.add(chunk.slot, start - chunk.start, end - chunk.start)
            if end == chunk.stop:
                self._release(chunk)
            start = end
        return self._batch.batch()

    def close(self) -> None:
        """End the thread, wherever it is, and wait for it. Closing twice is harmless."""
        self._closing.set()
        self._free.put(None)
        self._thread.join()
        if self._chunk:
            self._release(self._chunk)

    def _next_chunk(self) -> _Chunk:
        if self._closing.is_set():
            raise RuntimeError("another iteration of this part has begun, or it was closed")
        self._counters.queue_depth = self._ready.qsize()
        chunk = self._await_chunk()
        if isinstance(chunk, BaseException):
            raise chunk
        chunk.slot.fence.acquire()
        self._chunk = chunk
        return chunk

    def _await_chunk(self) -> _Chunk | BaseException:
        """Looks again and again, where there is something to see, at what the wait is for."""
        if not self._ready.empty() or (why := self._transfer.why_waiting()) is None:
            return self._ready.get()
        while True:
            cause, began = why(), time.perf_counter()
            try:
                return self._ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                pass
            finally:
                if cause is not None:
                    self._counters.hold_up(cause, time.perf_counter() - began)

    def _release(self, chunk: _Chunk) -> None:
        chunk.slot.fence.release()
        self._chunk = self._viewed = None
        self._free.put(chunk.slot)

    def _run(self) -> None:
        try:
            source = self._plan.open_source()
            try:
                self._read_all(source)
            finally:
                source.close()
        except _Closed:
            pass
        except BaseException as error:  # noqa: BLE001  raised again in the loop, by gather
            self._ready.put(error)

    def _read_all(self, source: Source) -> None:
        first, start, end = self._span
        most = self._plan.first_samples
        for epoch in range(first, max(first + 1, self._plan.epochs)):
            while start < end:
                chunk = self._read(source, epoch, start, most)
                self._ready.put(chunk)
                start, most = chunk.stop, min(GROWTH * most, self._plan.chunk_samples)
            start = 0

    def _read(self, source: Source, epoch: int, start: int, most: int) -> _Chunk:
        """As many samples from `start` on as fit into the next free slot, at most `most`."""
        plan, slot = self._plan, self._free.get()
        if slot is None:
            raise _Closed
        most = min(most, len(slot.places))
        stop = min(plan.order.chunk_stop(epoch, start, most), self._span[2])
        rows = plan.part.take(plan.order.rows(epoch, start, stop))
        rows = rows[: slot.fitting(rows)]
        for piece_bytes in self._transfer.load(source, rows, slot):
            self._counters.bytes_read += piece_bytes
            self._counters.copy_seconds = self._transfer.copy_seconds
            if self._closing.is_set():
                raise _Closed
        return _Chunk(slot, start, start + len(rows))
