"""torch.utils.data.DataLoader as a stream of batches, read here or by processes of its own."""

import signal
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from app.lifecycle import Reason
from app.planning.worker_pool import WorkerPool
from app.spec.data import DataLoaderLoader
from worker.trainer.data.batch import Batch, BatchPlan
from worker.trainer.data.batch_transfer import BatchTransfer
from worker.trainer.data.loader_dataset import Asked, RoomFiller
from worker.trainer.data.loader_processes import context_of, end_with_trainer
from worker.trainer.data.order import Order
from worker.trainer.data.source import OpenSource
from worker.trainer.data.split import Part
from worker.trainer.errors import TrainerError


class Asking:
    """What torch asks for next: its batch sampler, which it iterates over once an epoch.

    Batches are numbered from 1 on over all epochs, and take the slots of the room in turn. A slot
    is free when the loop, having taken its batch, asks for another.
    """

    def __init__(self, plan: BatchPlan, order: Order, part: Part, transfer: BatchTransfer) -> None:
        self._plan = plan
        self._order = order
        self._part = part
        self._transfer = transfer
        self._room = transfer.room
        self._epoch = self._start = 0
        self._asked = self._taken = 0

    def begin(self, epoch: int, start: int) -> None:
        """What is left of the iteration before keeps its numbers, and is not taken any more."""
        self._epoch, self._start = epoch, start
        self._taken = self._asked

    def __iter__(self) -> Iterator[Asked]:
        for start, stop in self._plan.bounds(self._start):
            number, size = self._asked + 1, stop - start
            if number - self._taken > self._room.slots:
                raise RuntimeError("torch asks for more batches ahead than it was told to")
            slot = number % self._room.slots
            self._transfer.wait_until_free(slot)
            rows = self._part.take(self._order.rows(self._epoch, start, stop))
            self._room.rows(slot, size)[:] = rows
            self._asked = number
            yield [number, slot, size]

    def take(self, size: int) -> tuple[dict[str, Tensor], int]:
        """The next batch, which was read, of so many samples; and the bytes that were read."""
        self._taken += 1
        slot = self._taken % self._room.slots
        return self._transfer.bring(slot, size), self._room.read_bytes(slot, size)

    def ready(self) -> int:
        """Batches that are read and not taken yet."""
        waiting, slots = range(self._taken + 1, self._asked + 1), self._room.slots
        return sum(int(self._room.filled[number % slots]) == number for number in waiting)


class Loaded:
    """Batches of one part."""

    def __init__(
        self,
        plan: BatchPlan,
        asking: Asking,
        transfer: BatchTransfer,
        open_source: OpenSource,
        pool: WorkerPool,
        settings: DataLoaderLoader,
    ) -> None:
        """Processes begin with an iteration, and end with it unless they are to stay."""
        self.plan = plan
        self.counters = transfer.counters
        self.counters.queue_depth = 0 if pool.workers else None
        self._asking = asking
        self._transfer = transfer
        self._dataset = RoomFiller(open_source, transfer.room)
        self._context = context_of(settings.multiprocessing_context)
        self._stay = settings.persistent_workers
        self._pool = pool
        self._loader: DataLoader[None] | None = self._new_loader()
        self._batches: Iterator[Any] | None = None
        self._iterations = 0

    @property
    def pids(self) -> list[int]:
        """Of the processes that read for it now."""
        return [process.pid for process in self._context.processes if process.pid is not None]

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        self._leave()
        self._iterations += 1
        mine = self._iterations
        self._asking.begin(epoch, start_position)
        self._batches = self._begun()
        try:
            for start, stop in self.plan.bounds(start_position):
                yield Batch(self._next(mine, stop - start), stop - start, stop)
        finally:
            if mine == self._iterations:
                self._leave()

    def close(self) -> None:
        self._context.end()
        self._batches = self._loader = None
        self._dataset.close()
        self._transfer.close()

    def _new_loader(self) -> DataLoader[None]:
        options: dict[str, Any] = {}
        if self._pool.workers:
            options = {
                "num_workers": self._pool.workers,
                "prefetch_factor": self._pool.prefetch_factor,
                "persistent_workers": self._stay,
                "multiprocessing_context": self._context,
                "worker_init_fn": end_with_trainer,
            }
        return DataLoader(
            self._dataset,
            batch_sampler=self._asking,
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # torch draws a seed, which else comes off the dropout's
            **options,
        )

    def _begun(self) -> Iterator[Any]:
        if self._loader is None:
            raise RuntimeError("this part was closed")
        try:
            return iter(self._loader)
        except RuntimeError as said:
            raise self._why(said) from said
        except OSError as error:
            raise TrainerError(
                Reason.crashed,
                f"The loader's processes could not be started ({error}). Free memory on this host, "
                "raise its limit of processes (ulimit -u), or lower data.loader.num_workers.",
            ) from error
        finally:
            # torch would raise out of a signal, anywhere; who waits for a batch finds it as well.
            # Not what was there before: that may be torch's own, of another loader.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _next(self, iteration: int, size: int) -> dict[str, Tensor]:
        if self._batches is None or iteration != self._iterations:
            raise RuntimeError("another iteration of this part has begun, or it was closed")
        if self._context.processes:
            self.counters.queue_depth = self._asking.ready()
        try:
            error = next(self._batches)
        except RuntimeError as said:
            raise self._why(said) from said
        if error is not None:
            raise error
        arrays, read_bytes = self._asking.take(size)
        self.counters.bytes_read += read_bytes
        self.counters.copy_seconds = self._transfer.copy_seconds
        return arrays

    def _why(self, said: RuntimeError) -> Exception:
        """What torch meant: as a rule that one of the processes is gone."""
        gone = self._context.why_gone()
        if gone is None:
            return said
        self._context.end()
        self._batches, self._loader = None, self._new_loader()  # the old one would wait for it
        return gone

    def _leave(self) -> None:
        """End the iteration that is under way."""
        if not self._stay:
            self._context.end()
        self._batches = None


def _as_it_is(answer: Any) -> Any:
    return answer
