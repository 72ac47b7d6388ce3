"""How many processes the PyTorch loader reads a part with, and what these take.

Pure arithmetic: the trainer goes by it, and the guard's memory plan reckons by it.
"""

from dataclasses import dataclass

from app.planning.imports import Imports
from app.planning.ladder import NO_RUNG, Rung
from app.spec.data import DataLoaderLoader

PREFETCH_FACTOR = 2  # torch's own default


@dataclass(frozen=True)
class WorkerPool:
    """Of one part. `slots`: batches that are read or under way, and the one that is in use."""

    workers: int
    prefetch_factor: int
    """Batches that each of them is ahead at most."""
    slots: int


def worker_pool_for(
    loader: DataLoaderLoader, cores: int, batches: int, rung: Rung = NO_RUNG
) -> WorkerPool:
    """No more processes than cores that they may use, and than batches there are to read; nor than
    a rung of the memory ladder allows.
    """
    workers = min(loader.num_workers, cores, batches)
    prefetch_factor = loader.prefetch_factor or PREFETCH_FACTOR
    if rung.workers is not None:
        workers = min(workers, rung.workers)
    if rung.prefetch_factor is not None:
        prefetch_factor = min(prefetch_factor, rung.prefetch_factor)
    ahead = min(workers * prefetch_factor, max(0, batches - 1))
    return WorkerPool(workers, prefetch_factor, ahead + 1)


def process_bytes(loader: DataLoaderLoader, imports: Imports) -> int:
    """What each takes of the host that no other does."""
    return {"spawn": imports.spawned, "forkserver": imports.forked}[loader.multiprocessing_context]
