"""What the processes of the PyTorch loader cost: host memory, and time to start."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.guard.facts import LENGTH_BYTES, HostFacts
from app.guard.memory.budget import STEPS, Item
from app.guard.memory.workload import Workload
from app.planning.arithmetic import batches_per_epoch, evaluation_batch
from app.planning.imports import Imports
from app.planning.residency import LEAST_PLACED_BYTES
from app.planning.worker_pool import WorkerPool, process_bytes, worker_pool_for
from app.spec.data import DataLoaderLoader

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
        """Places for the batches of all parts, and what each reader sorts one in."""
        training = self.training.slots + self.sorting * max(1, self.training.workers)
        evaluating = sum(pool.slots for pool in self.held_out)
        return training * self.batch_bytes + evaluating * self.evaluation_batch_bytes

    def processes_bytes(self, count: int) -> int:
        """Of so many processes, beside the batches."""
        serves = self.loader.multiprocessing_context == "forkserver" and count > 0
        each = process_bytes(self.loader, self.imports) + self.index_bytes
        return count * each + serves * self.imports.fork_server

    def items(self, *, used_there: bool) -> Iterator[Item]:
        """Of the host. The places stay, and processes are there while a part is read; with
        `used_there` the training reads its batch where it lies, and it is counted elsewhere.
        """
        yield Item("loader_batches", self.batches_bytes - used_there * self.batch_bytes)
        yield Item("loader_processes", self.processes_bytes(self.training.workers), STEPS)
        beside = self.processes_bytes(self.processes) - self.processes_bytes(self.training.workers)
        phases = STEPS if self.loader.persistent_workers else ("evaluating",)
        yield Item("evaluation_processes", beside, phases)


def worker_pools(work: Workload, loader: DataLoaderLoader, host: HostFacts) -> WorkerPools:
    """As the trainer will settle them, on a host whose cores are known; otherwise as asked for."""
    spec, sizes, cores = work.spec, work.sizes, host.cores or loader.num_workers
    looked_at = evaluation_batch(spec.evaluation, spec.training)
    parts = [count for count in (sizes.validation, sizes.test) if count]
    held_out = tuple(worker_pool_for(loader, cores, -(-n // looked_at)) for n in parts)
    batches = batches_per_epoch(spec.training, sizes.training)
    indexes = sum(
        (array.lengths is not None) + (array.edges is not None) for array in work.arrays.values()
    )
    return WorkerPools(
        loader,
        worker_pool_for(loader, cores, batches),
        held_out,
        batch_bytes=work.batch * work.sample_bytes,
        evaluation_batch_bytes=work.evaluation_batch * work.sample_bytes,
        imports=host.imports,
        index_bytes=LENGTH_BYTES * indexes * (sizes.training + sum(parts)),
        sorting=loader.shuffle == "full" and work.sample_bytes < LEAST_PLACED_BYTES,
    )


def process_values(loader: DataLoaderLoader, workers: int, prefetch_factor: int) -> dict[str, Any]:
    """What of the spec gives the loader so many processes, as far as it is not so already."""
    values = {
        "num_workers": workers,
        "prefetch_factor": prefetch_factor if workers else None,
        "persistent_workers": loader.persistent_workers and workers > 0,
    }
    return {f"/data/loader/{n}": v for n, v in values.items() if getattr(loader, n) != v}
