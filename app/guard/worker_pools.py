"""What the processes of the PyTorch loader cost: host memory, and time to start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.guard.facts import LENGTH_BYTES, DeviceFacts, FieldFacts
from app.guard.memory_room import STEPS, Item
from app.planning.arithmetic import PartSizes, batches_per_epoch, evaluation_batch
from app.planning.imports import Imports
from app.planning.residency import LEAST_PLACED_BYTES
from app.planning.worker_pool import WorkerPool, process_bytes, worker_pool_for
from app.spec.data import DataLoaderLoader
from app.spec.run import RunSpec

# Until two processes on two idle cores have read their first batch; of a fork server after the
# first time.
START_SECONDS = {"spawn": 1.3, "forkserver": 0.1}


@dataclass(frozen=True)
class WorkerPools:
    """Those of a run's parts, with the bytes of a batch of training and of evaluation."""

    loader: DataLoaderLoader
    training: WorkerPool
    held_out: tuple[WorkerPool, ...]
    """Of validation and test."""
    batch_bytes: int
    evaluation_batch_bytes: int
    imports: Imports
    index_bytes: int
    """Copies of where ragged samples begin, of each process."""
    sorting: bool
    """Whether a batch of the training is read in the order of the file, and put into its own."""

    @property
    def processes(self) -> int:
        """At once at most: those of a part that is not in use end, unless they are to stay."""
        looking = [pool.workers for pool in self.held_out] or [0]
        beside = sum(looking) if self.loader.persistent_workers else max(looking)
        return self.training.workers + beside

    @property
    def batches_bytes(self) -> int:
        """Room for the batches of all parts, and what each reader sorts one in."""
        training = self.training.slots + self.sorting * max(1, self.training.workers)
        evaluating = sum(pool.slots for pool in self.held_out)
        return training * self.batch_bytes + evaluating * self.evaluation_batch_bytes

    def processes_bytes(self, count: int) -> int:
        serves = self.loader.multiprocessing_context == "forkserver" and count > 0
        each = process_bytes(self.loader, self.imports) + self.index_bytes
        return count * each + serves * self.imports.fork_server

    def items(self, *, used_there: bool) -> Iterator[Item]:
        """Of the host. The room stays, and processes are there while a part is read; with
        `used_there` the training reads its batch in the room, and it is counted elsewhere.
        """
        yield Item("loader_batches", self.batches_bytes - used_there * self.batch_bytes)
        yield Item("loader_processes", self.processes_bytes(self.training.workers), STEPS)
        beside = self.processes_bytes(self.processes) - self.processes_bytes(self.training.workers)
        phases = STEPS if self.loader.persistent_workers else ("evaluating",)
        yield Item("evaluation_processes", beside, phases)


def worker_pools_of(
    spec: RunSpec,
    loader: DataLoaderLoader,
    sizes: PartSizes,
    device: DeviceFacts,
    arrays: Sequence[FieldFacts],
) -> WorkerPools:
    """As the trainer will settle them, on a host whose cores are known; otherwise as asked for."""
    cores = device.host.cores or loader.num_workers
    batch = min(spec.training.batch_size, sizes.training)
    looked_at = evaluation_batch(spec.evaluation, spec.training)
    parts = [count for count in (sizes.validation, sizes.test) if count]
    held_out = tuple(worker_pool_for(loader, cores, -(-count // looked_at)) for count in parts)
    training = worker_pool_for(loader, cores, batches_per_epoch(spec.training, sizes.training))
    evaluated = min(looked_at, max(parts, default=0))
    sample_bytes = sum(array.sample_bytes for array in arrays)
    sorting = loader.shuffle == "full" and sample_bytes < LEAST_PLACED_BYTES
    batches = batch * sample_bytes, evaluated * sample_bytes
    ragged = sum(array.lengths is not None for array in arrays)
    index = LENGTH_BYTES * ragged * (sizes.training + sum(parts))
    return WorkerPools(loader, training, held_out, *batches, device.host.imports, index, sorting)
