"""Data larger than the device's memory: chunks take turns in two slots."""

from collections.abc import Generator
from dataclasses import replace

from app.spec.residency import slots_for
from worker.trainer.data.batch import Batch, BatchPlan
from worker.trainer.data.counters import Counters
from worker.trainer.data.reader import ChunkPlan, ChunkReader, Rooms
from worker.trainer.data.transfer import Transfer


class Streamed:
    """Batches of one part, read in chunks by a thread while the chunk before is in use."""

    def __init__(self, plan: BatchPlan, chunks: ChunkPlan, transfer: Transfer) -> None:
        """Takes the memory of both slots at once, of one where a chunk holds the whole part: what
        does not fit fails here, not hours later at the first evaluation, and a slot is never made
        in inference mode, where the reader's thread could not write to it. An evaluation's slots
        so stay between evaluations: at most 2 × EVALUATION_CHUNK_BYTES (app.spec.residency) for
        each held-out part.
        """
        self.plan = plan
        self.counters = Counters(queue_depth=0)
        self._chunks = replace(chunks, chunk_samples=_of_whole_batches(chunks, plan))
        self._transfer = transfer
        samples = min(self._chunks.chunk_samples, plan.num_samples)
        count = slots_for(self._chunks.chunk_samples, plan.num_samples)
        self._slots = [transfer.new_slot(samples, samples) for _ in range(count)]
        self._batch = transfer.new_batch(min(plan.batch_size, plan.num_samples))
        self._reader: ChunkReader | None = None

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        self._end_reader()
        reader = self._reader = self._start_reader(epoch, start_position)
        try:
            for start, stop in self.plan.bounds(start_position):
                yield Batch(reader.gather(start, stop), stop - start, stop)
        finally:
            reader.close()

    def close(self) -> None:
        self._end_reader()
        self._transfer.close()
        self._slots.clear()
        self._batch.clear()

    def _start_reader(self, epoch: int, start_position: int) -> ChunkReader:
        if not self._slots:
            raise RuntimeError("this part was closed")
        span = (epoch, start_position, self.plan.usable_samples)
        rooms = Rooms(self._slots, self._batch)
        return ChunkReader(self._chunks, self._transfer, rooms, self.counters, span)

    def _end_reader(self) -> None:
        if self._reader:
            self._reader.close()
            self._reader = None


def _of_whole_batches(chunks: ChunkPlan, plan: BatchPlan) -> int:
    """Samples of a chunk such that no batch lies in two of them, and so has to be copied together;
    under block shuffling chunks end where groups do.
    """
    samples, batch = chunks.chunk_samples, plan.batch_size
    if chunks.order.shuffle == "block" or not batch <= samples < plan.num_samples:
        return samples
    return samples // batch * batch
