"""How fast each arm brings an epoch, in turn, and what ours is worth beside each of the others."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.loading.files import LAYOUTS, DataFile, write
from benchmarks.loading.peers import dataloader, naive_chunks
from benchmarks.loading.probes import in_memory, load, memory_copy, raw_read
from benchmarks.loading.rounds import first_batches, in_turn, rates, ratio
from benchmarks.loading.stoker import by_torch, stoker

# (samples, features): of 235 KiB each, as in the reference; of 23 KiB, as weather.
LARGE, SMALL, PACKED = (4096, 167), (10_240, 16), (1024, 167)
SMALL_BYTES = 2**16
PACKINGS = tuple(name for name in LAYOUTS if name != "contiguous")
WORKERS = (0, 2, 4)
OWN_WORKERS = (0, 2)
KIB = 2**10
COMMAND = "python -m benchmarks loading"


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        large = write(Path(folder), "contiguous", *LARGE)
        small = write(Path(folder), "contiguous", *SMALL)
        return [
            *_contiguous(large, shuffled=False),
            *_contiguous(large, shuffled=True),
            *_contiguous(small, shuffled=False),
            *_contiguous(small, shuffled=True),
            *(figure for name in PACKINGS for figure in _compressed(Path(folder), name)),
            *_cold(large),
        ]


def _contiguous(file: DataFile, *, shuffled: bool) -> list[Figure]:
    data = load(file)
    title = f"{round(file.sample_bytes / KIB)} KiB {'shuffled' if shuffled else 'in order'}"
    shuffle = "full" if shuffled else "none"
    probe = raw_read(file, data["targets"], shuffled=shuffled)
    ours = stoker(file, "stream", shuffle)
    items = [dataloader(file, n, batched=False, shuffled=shuffled) for n in WORKERS]
    batches = [dataloader(file, n, batched=True, shuffled=shuffled) for n in WORKERS]
    loaded = [by_torch(file, n, shuffle) for n in OWN_WORKERS]
    naive = naive_chunks(file, shuffled=shuffled)
    others = [memory_copy(data), in_memory(data, shuffled=shuffled)]
    arms = [probe, ours, stoker(file, "resident", shuffle), naive]
    arms += [*others, *items, *batches, *loaded]
    if shuffled:
        arms.append(replace(stoker(file, "stream", "block"), name="stoker, stream of blocks"))
    rounds = in_turn(file, arms)
    figures = rates(title, rounds, COMMAND)
    figures += first_batches(title, rounds, [ours, naive, *items, *batches], COMMAND)
    figures.append(ratio(title, rounds, ours, [probe], 0.85, COMMAND))
    # Without a bound where one would be above the rate at which memory is copied.
    figures.append(ratio(title, rounds, ours, [naive], 4.0 if shuffled else None, COMMAND))
    figures.append(ratio(title, rounds, ours, loaded, None, COMMAND))
    if shuffled:
        small = file.sample_bytes < SMALL_BYTES
        figures.append(ratio(title, rounds, ours, items, 8.0 if small else None, COMMAND))
        figures.append(ratio(title, rounds, ours, batches, 2.0, COMMAND))
    return figures


def _compressed(folder: Path, layout: str, size: tuple[int, int] = PACKED) -> list[Figure]:
    file = write(folder, layout, *size)
    naive, ours = naive_chunks(file, shuffled=False), stoker(file, "stream", "none")
    rounds = in_turn(file, [naive, ours])
    return [*rates(layout, rounds, COMMAND), ratio(layout, rounds, ours, [naive], 2.0, COMMAND)]


def _cold(file: DataFile) -> list[Figure]:
    probe = raw_read(file, load(file)["targets"], shuffled=False)
    ours = stoker(file, "stream", "none")
    rounds = in_turn(file, [probe, ours], before=lambda: forget(file))
    return [*rates("cold", rounds, COMMAND), ratio("cold", rounds, ours, [probe], 0.95, COMMAND)]


def forget(file: DataFile) -> None:
    """Its pages leave the cache of the system."""
    with file.path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
