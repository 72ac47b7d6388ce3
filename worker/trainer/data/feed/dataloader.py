"""torch.utils.data.DataLoader as a stream of batches, read here or by processes of its own.

Its dataset is map-style, and is asked for a batch at a time, in the run's order: the batches are
those of the chunked loader to the last bit.
"""

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from app.lifecycle import Reason
from app.planning.residency import in_gib
from app.planning.worker_pool import WorkerPool
from app.spec.data import DataLoaderLoader
from worker.trainer.data.batch import ONE_SHAPE, Batch, BatchPlan, BatchShapes, Bucket
from worker.trainer.data.counters import Counters
from worker.trainer.data.feed.samples import Batched, Fetched
from worker.trainer.data.order import Order
from worker.trainer.data.source import lengths_of
from worker.trainer.data.split import Part
from worker.trainer.errors import SpecMismatch, TrainerError

# What torch raises of a process that has died, or while it fetched a tensor from one.
OF_A_DEATH = (RuntimeError, ConnectionError, EOFError)
DEATH_SECONDS = 1.0
# After which a process that still reads is killed, where nobody wants what it reads.
END_SECONDS = 2.0
# Where PyTorch hands over tensors from one process to another.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - its free space alone


class ToDevice(Protocol):
    """Brings a batch from the host to where it is used."""

    @property
    def copy_seconds(self) -> float | None:
        """What the copies that are done took; None where nothing has to be copied."""

    def bring(self, arrays: dict[str, Tensor], counters: Counters) -> dict[str, Tensor]:
        """The same on the device; what holds up the loop is counted."""

    def close(self) -> None:
        """Wait for the copies that are under way."""


class OnHost:
    """The device is the host."""

    copy_seconds: float | None = None

    def bring(self, arrays: dict[str, Tensor], counters: Counters) -> dict[str, Tensor]:
        return arrays

    def close(self) -> None:
        """Nothing is under way."""


class BatchRows:
    """torch's batch sampler: the rows of each batch of an epoch, from a position on."""

    def __init__(self, plan: BatchPlan, order: Order, part: Part) -> None:
        self._plan, self._order, self._part = plan, order, part
        self.begin_at = 0, 0
        """Epoch and position."""

    def __iter__(self) -> Iterator[Any]:  # torch's type for it is a list
        epoch, position = self.begin_at
        for start, stop in self._plan.bounds(position):
            yield self._part.take(self._order.rows(epoch, start, stop))


class DataLoaderBatches:
    """Batches of one part. Processes begin with an iteration, and end with it unless they are to
    stay.
    """

    def __init__(
        self,
        plan: BatchPlan,
        rows: BatchRows,
        dataset: Batched,
        to_device: ToDevice,
        pool: WorkerPool,
        settings: DataLoaderLoader,
        shapes: BatchShapes = ONE_SHAPE,
    ) -> None:
        self.plan, self.shapes = plan, shapes
        self.counters = Counters(copy_seconds=to_device.copy_seconds)
        self._rows, self._dataset, self._to_device = rows, dataset, to_device
        self._pool, self._settings = pool, settings
        self._context = context_of(settings.multiprocessing_context)
        self._processes: list[BaseProcess] = []
        self._loader: DataLoader[Any] | None = self._new_loader()
        self._batches: Iterator[Any] | None = None
        self._iterations = 0

    @property
    def pids(self) -> list[int]:
        """Of the processes that read for it now."""
        return [process.pid for process in self._processes if process.pid is not None]

    def place(self, size: int, bucket: Bucket) -> None:
        """Each batch comes in memory of its own."""

    def iterate(self, epoch: int, start_position: int = 0) -> Generator[Batch]:
        self._leave()
        self._iterations += 1
        mine = self._iterations
        self._rows.begin_at = epoch, start_position
        self._batches = self._begun()
        try:
            for start, stop in self.plan.bounds(start_position):
                yield Batch(self._next(mine), stop - start)
        finally:
            if mine == self._iterations:
                self._leave()

    def close(self) -> None:
        self._end_processes(None)
        self._dataset.close()
        self._to_device.close()
        self.counters.copy_seconds = self._to_device.copy_seconds

    def _new_loader(self) -> DataLoader[Any]:
        options: dict[str, Any] = {}
        if self._pool.workers:
            options = {
                "num_workers": self._pool.workers,
                "prefetch_factor": self._pool.prefetch_factor,
                "persistent_workers": self._settings.persistent_workers,
                "multiprocessing_context": self._context,
                "worker_init_fn": end_with_trainer,
            }
        return DataLoader(
            self._dataset,
            batch_sampler=self._rows,
            collate_fn=_as_it_is,
            pin_memory=self._settings.pin_memory,
            generator=torch.Generator(),  # torch draws a seed, which else comes off the dropout's
            **options,
        )

    def _begun(self) -> Iterator[Any]:
        if self._loader is None:
            raise RuntimeError("this part was closed")
        before = multiprocessing.active_children()
        failed: Exception
        try:
            return iter(self._loader)
        except OF_A_DEATH as said:
            failed = self._why(said)
        except OSError as error:
            failed = TrainerError(
                Reason.crashed,
                f"The loader's processes could not be started ({error}). Free memory on this host, "
                "raise its limit of processes (ulimit -u), or lower data.loader.num_workers.",
            )
        finally:
            started = (one for one in multiprocessing.active_children() if one not in before)
            self._processes += started
            # torch would raise out of a signal, anywhere; who waits for a batch finds it as well.
            # Not what was there before: that may be torch's own, of another loader.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        raise failed

    def _next(self, iteration: int) -> dict[str, Tensor]:
        if self._batches is None or iteration != self._iterations:
            raise RuntimeError("another iteration of this part has begun, or it was closed")
        fetched: Fetched
        try:
            fetched = next(self._batches)
        except OF_A_DEATH as said:
            fetched = self._why(said)
        if isinstance(fetched, Exception):  # behind `except`: torch's iterator is not kept by it
            raise fetched
        self.counters.bytes_read += read_bytes(fetched)
        arrays = self._to_device.bring(fetched, self.counters)
        self.counters.copy_seconds = self._to_device.copy_seconds
        return arrays

    def _why(self, said: Exception) -> Exception:
        """What torch meant: as a rule that one of the processes is gone, or about to be."""
        sentinels = [process.sentinel for process in self._processes]
        ended = wait(sentinels, DEATH_SECONDS) if sentinels else []
        gone = next((one for one in self._processes if one.sentinel in ended), None)
        if gone is None:
            return said
        gone.join()  # its pipe closes a moment before its exit code can be asked for
        error = _gone(gone.pid, gone.exitcode or 0)
        said.__traceback__ = None  # its frames hold torch's iterator
        self._end_processes(self._new_loader())  # the old one would wait for it
        return error

    def _leave(self) -> None:
        """End the iteration that is under way."""
        if self._settings.persistent_workers:
            self._batches = None
        else:
            self._end_processes(self._loader)

    def _end_processes(self, loader: DataLoader[Any] | None) -> None:
        """Let go of torch's iterator, of which `loader` comes next, then kill what is left. Torch
        goes first: it would wait for ever for a lock that a killed one held. It gives each process
        ten seconds, one after another; they only read, so all are killed before.
        """
        impatience = threading.Timer(END_SECONDS, self._kill)
        impatience.start()
        self._batches, self._loader = None, loader
        impatience.cancel()
        impatience.join()
        self._kill()
        for process in self._processes:
            process.join()
        self._processes.clear()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def read_bytes(arrays: Mapping[str, Tensor]) -> int:
    """Of a batch: a sample that was filled up is not as long as its place."""
    read = 0
    for name, array in arrays.items():
        lengths = arrays.get(lengths_of(name))
        read += array.nbytes if lengths is None else int(lengths.sum()) * array[0, 0].nbytes
    return read


def require_shared_memory(needed_bytes: int) -> None:
    """SpecMismatch where batches that wait would fill it: a process that writes more is killed."""
    free = shutil.disk_usage(SHARED_MEMORY).free
    if needed_bytes > free:
        raise SpecMismatch(
            f"The loader's processes hand over their batches in {SHARED_MEMORY}, which has"
            f" {in_gib(free)} free, and {in_gib(needed_bytes)} may wait there. Give the container"
            " more (docker run --shm-size), lower data.loader.num_workers or prefetch_factor, or"
            " set num_workers to 0."
        )


def context_of(method: Literal["spawn", "forkserver"]) -> BaseContext:
    """`spawn`: each process begins anew; `forkserver`: it is a copy of one that has imported what
    they need.
    """
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    return context


def end_with_trainer(_: int) -> None:
    """Have this process end as soon as the trainer does, in whatever way, also while it reads; and
    not before, when all processes of a service are told to: the trainer still has to save.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    trainer = multiprocessing.parent_process()

    def follow() -> None:
        if trainer is not None:
            trainer.join()
        os._exit(1)

    threading.Thread(target=follow, name="end-with-trainer", daemon=True).start()


def _gone(pid: int | None, code: int) -> TrainerError:
    if code == -signal.SIGKILL:
        return TrainerError(
            Reason.killed,
            f"A loader process ({pid}) was killed by SIGKILL, as the kernel does when the host "
            "runs out of memory. If it comes again, lower data.loader.num_workers or "
            "prefetch_factor.",
        )
    if code == -signal.SIGTERM:
        return TrainerError(
            Reason.interrupted,
            f"A loader process ({pid}) was ended by SIGTERM as it started, as in a shutdown.",
        )
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return TrainerError(
        Reason.crashed,
        f"A loader process ({pid}) ended {how} without saying why; trainer.log of the attempt has "
        "what it wrote. If it comes again, data.loader.num_workers 0 reads without processes.",
    )


def _as_it_is(answer: Any) -> Any:
    return answer
