"""Data larger than the device's memory: chunks take turns in two slots."""

import math
from collections.abc import Generator, Mapping
from dataclasses import replace

from torch import Tensor

from app.planning.residency import SLOTS
from worker.trainer.data.batch import ONE_SHAPE, Batch, BatchPlan, BatchShapes, Bucket
from worker.trainer.data.counters import Counters
from worker.trainer.data.feed.reader import GROWTH, ChunkPlan, ChunkReader, DeviceMemory
from worker.trainer.data.feed.transfer import Transfer


class Streamed:
    """Batches of one part, read in chunks by a thread while the chunk before is in use."""

    def __init__(
        self,
        plan: BatchPlan,
        chunks: ChunkPlan,
        transfer: Transfer,
        shapes: BatchShapes = ONE_SHAPE,
    ) -> None:
        """Takes the memory of both slots at once, of one where a chunk is the whole part: what
        does not fit fails here, not hours later at the first evaluation, and a slot is never made
        in inference mode, where the reader's thread could not write to it. An evaluation's slots
        so stay between evaluations: at most 2 × EVALUATION_CHUNK_BYTES (app.planning.residency) for
        each held-out part.
        """
        self.plan, self.shapes = plan, shapes
        self.counters = Counters(queue_depth=0)
        self._chunks = replace(chunks, first_samples=_first_samples(chunks, plan))
        self._transfer = transfer
        sizes = _slot_samples(self._chunks, plan)
        self._slots = [transfer.new_slot(samples) for samples in sizes]
        self._batch = transfer.new_batch(plan.largest_micro_batch, shapes)
        self._reader: ChunkReader | None = None

    def place(self, size: int, bucket: Bucket) -> Mapping[str, Tensor]:
        return self._batch.place(size, bucket)

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        reader = self._reader
        if reader is None or (reader.next_epoch, 0) != (epoch, start_position):
            self._end_reader()
            reader = self._reader = self._start_reader(epoch, start_position)
        try:
            for start, stop in self.plan.bounds(start_position):
                yield Batch(reader.gather(start, stop), stop - start)
            reader.end_epoch(epoch)
        finally:
            if reader.next_epoch is None:
                reader.close()

    def close(self) -> None:
        self._end_reader()
        self._transfer.close()
        self._slots.clear()
        self._batch.close()

    def _start_reader(self, epoch: int, start_position: int) -> ChunkReader:
        if not self._slots:
            raise RuntimeError("this part was closed")
        span = (epoch, start_position, self.plan.usable_samples)
        memory = DeviceMemory(self._slots, self._batch)
        return ChunkReader(self._chunks, self._transfer, memory, self.counters, span)

    def _end_reader(self) -> None:
        if self._reader:
            self._reader.close()
            self._reader = None


def _first_samples(chunks: ChunkPlan, plan: BatchPlan) -> int:
    """Of the first chunk, in whole batches: what is left of a part that one chunk would hold comes
    in the second.
    """
    if chunks.first_samples >= min(chunks.chunk_samples, plan.num_samples):
        return chunks.chunk_samples
    least = 0 if chunks.chunk_samples < plan.num_samples else plan.num_samples / (1 + GROWTH)
    batches = math.ceil(max(chunks.first_samples, least) / plan.batch_size)
    return min(batches * plan.batch_size, chunks.chunk_samples)


def _slot_samples(chunks: ChunkPlan, plan: BatchPlan) -> list[int]:
    """Such that no batch lies in two chunks, and so has to be copied together; under block
    shuffling chunks end where groups do.
    """
    samples, first, batch = chunks.chunk_samples, chunks.first_samples, plan.batch_size
    if samples >= plan.num_samples:
        return [n for n in (min(first, plan.num_samples), plan.num_samples - first) if n > 0]
    if chunks.order.shuffle != "block" and batch <= samples:
        samples -= samples % batch
    return [samples] * SLOTS
