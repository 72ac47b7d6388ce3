"""How fast each arm brings an epoch, in turn, and what ours is worth beside each of the others."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.figures import Figure, not_measured
from benchmarks.loading.arms import CORES, Arm, Runner
from benchmarks.loading.files import LAYOUTS, DataFile, write
from benchmarks.loading.memory import peaks
from benchmarks.loading.neighbours import NOT_INSTALLED, PACKAGES, neighbours, plain_script
from benchmarks.loading.peers import dataloader, naive_chunks
from benchmarks.loading.probes import in_memory, load, mapped_gather, memory_copy, raw_read
from benchmarks.loading.rounds import ROUNDS, in_turn, rates, ratio
from benchmarks.loading.stoker import by_torch, stoker

# (samples, features): of 235 KiB each, as in the reference; of 23 KiB, as weather.
LARGE, SMALL, PACKED = (4096, 167), (40_960, 16), (1024, 167)
SMALL_BYTES = 2**16
PACKINGS = tuple(name for name in LAYOUTS if name != "contiguous")
WORKERS = (0, CORES, 2 * CORES)
OWN_WORKERS = (0, CORES)
KIB = 2**10
COMMAND = "python -m benchmarks loading"


def measure(effort: Effort, device: str = "cpu") -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as name:
        folder = Path(name)
        large = write(folder, "contiguous", effort.samples(LARGE[0]), LARGE[1])
        small = write(folder, "contiguous", effort.samples(SMALL[0], times=3), SMALL[1])
        figures = [
            figure
            for file in (large, small)
            for shuffled in (False, True)
            for figure in _contiguous(file, effort, device, shuffled=shuffled)
        ]
        for layout in effort.variants(PACKINGS):
            packed = write(folder, layout, effort.samples(PACKED[0]), PACKED[1])
            figures += _compressed(packed, layout, effort, device)
        for shuffled in (False, True):
            figures += _cold(large, effort, device, shuffled=shuffled)
        return figures


def _contiguous(
    file: DataFile, effort: Effort, device: str = "cpu", *, shuffled: bool
) -> list[Figure]:
    data = load(file)
    ready = load(file, device) if device != "cpu" else data
    title = f"{round(file.sample_bytes / KIB)} KiB {'shuffled' if shuffled else 'in order'}"
    probe = (mapped_gather if shuffled else raw_read)(file, data["targets"])
    limits = [memory_copy(data), in_memory(ready, shuffled=shuffled)]
    makers = _makers(file, effort, device, shuffled=shuffled)
    arms = {kind: [make() for make in each] for kind, each in makers.items()}
    alone = effort.own_processes and device == "cpu"
    beside = neighbours(file, shuffled=shuffled) if alone else ()
    plain = plain_script(file, shuffled=shuffled) if alone else ()
    everyone: list[Runner] = [probe, *limits, *chain.from_iterable(arms.values()), *plain, *beside]
    rounds = in_turn(file, everyone, effort.rounds(ROUNDS))
    openers = chain.from_iterable(makers.values()) if alone and shuffled else ()
    figures = rates(title, file, rounds, COMMAND, probe, peaks(openers, file))
    if not beside:
        figures += _without_neighbours(title, effort, device)
    [ours, *_] = arms["stoker"]
    small = file.sample_bytes < SMALL_BYTES
    scattered = shuffled and small  # what is seen of them is in docs/performance.md, with reasons
    # Without a bound where one would be above the rate at which memory is copied.
    compared: list[tuple[Sequence[Runner], float | None, float | None]] = [
        ([probe], 0.85, 0.34 if scattered else None),
        (arms["naive"], 4.0 if shuffled else None, 1.6 if scattered else None),
        *(([arm], None, None) for arm in plain),
        (beside, None, None),
        (arms["loaded"], None, None),
        (arms["items"], 8.0 if scattered else None, 7.0 if scattered else None),
        (arms["batches"], 2.0 if shuffled else None, None),
    ]
    return figures + [
        ratio(title, rounds, ours, others, bound, COMMAND, seen)
        for others, bound, seen in compared
        if others
    ]


def _makers(
    file: DataFile, effort: Effort, device: str, *, shuffled: bool
) -> Mapping[str, Sequence[Callable[[], Arm]]]:
    """What opens each arm that reads the file; others are compared with the first of `stoker`."""
    shuffle = "full" if shuffled else "none"
    ways = [
        ("stream", shuffle),
        ("resident", shuffle),
        *([("stream", "block")] if shuffled else []),
    ]
    workers = effort.variants(WORKERS)
    loader = partial(dataloader, file, shuffled=shuffled, device=device)
    return {
        "stoker": [partial(stoker, file, *way, device=device) for way in ways],
        "naive": [partial(naive_chunks, file, shuffled=shuffled, device=device)],
        "items": [partial(loader, n, batched=False) for n in workers],
        "batches": [partial(loader, n, batched=True) for n in workers],
        "loaded": [
            partial(by_torch, file, n, shuffle, device) for n in effort.variants(OWN_WORKERS)
        ],
    }


def _without_neighbours(title: str, effort: Effort, device: str) -> list[Figure]:
    why = NOT_INSTALLED if effort.own_processes else "not in the quick form"
    why = why if device == "cpu" else "their process has no GPU"
    return [not_measured(f"{title}: {name}", why, COMMAND) for name in PACKAGES]


def _compressed(file: DataFile, layout: str, effort: Effort, device: str = "cpu") -> list[Figure]:
    naive = naive_chunks(file, shuffled=False, device=device)
    ours = stoker(file, "stream", "none", device=device)
    rounds = in_turn(file, [naive, ours], effort.rounds(ROUNDS))
    figures = rates(layout, file, rounds, COMMAND)
    return [*figures, ratio(layout, rounds, ours, [naive], 2.0, COMMAND)]


def _cold(file: DataFile, effort: Effort, device: str = "cpu", *, shuffled: bool) -> list[Figure]:
    """In order beside the disk's own pace; shuffled, rows that are read beside a map of them."""
    title, targets = "cold, shuffled" if shuffled else "cold", load(file)["targets"]
    probe = mapped_gather(file, targets, anew=True) if shuffled else raw_read(file, targets)
    ours = stoker(file, "stream", "full" if shuffled else "none", device=device)
    rounds = in_turn(file, [probe, ours], effort.rounds(ROUNDS), before=lambda: forget(file))
    figures = rates(title, file, rounds, COMMAND, probe)
    bound = None if shuffled else 0.95
    return [*figures, ratio(title, rounds, ours, [probe], bound, COMMAND)]


def forget(file: DataFile) -> None:
    """Its pages leave the cache of the system."""
    with file.path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
