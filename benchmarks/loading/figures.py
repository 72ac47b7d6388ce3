"""How fast each arm brings an epoch, in turn, and what ours is worth beside each of the others."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import Arm
from benchmarks.loading.files import LAYOUTS, DataFile, write
from benchmarks.loading.peers import dataloader, naive_chunks
from benchmarks.loading.probes import in_memory, load, memory_copy, raw_read
from benchmarks.loading.stoker import stoker

ROUNDS = 5
# (samples, features): of 235 KiB each, as in the reference; of 23 KiB, as weather.
LARGE, SMALL, PACKED = (4096, 167), (10_240, 16), (1024, 167)
SMALL_BYTES = 2**16
PACKINGS = tuple(name for name in LAYOUTS if name != "contiguous")
WORKERS = (0, 2, 4)
KIB, GIB = 2**10, 2**30
COMMAND = "python -m benchmarks loading"


Rounds = dict[str, list[float]]
"""By arm, GiB a second."""


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
    naive = naive_chunks(file, shuffled=shuffled)
    others = [memory_copy(data), in_memory(data, shuffled=shuffled)]
    arms = [probe, ours, stoker(file, "resident", shuffle), naive, *others, *items, *batches]
    if shuffled:
        arms.append(replace(stoker(file, "stream", "block"), name="stoker, stream of blocks"))
    rounds = in_turn(file, arms)
    figures = _rates(title, rounds)
    figures.append(_ratio(title, rounds, ours, [probe], 0.85))
    # Without a bound where one would be above the rate at which memory is copied.
    figures.append(_ratio(title, rounds, ours, [naive], 4.0 if shuffled else None))
    if shuffled:
        small = file.sample_bytes < SMALL_BYTES
        figures.append(_ratio(title, rounds, ours, items, 8.0 if small else None))
        figures.append(_ratio(title, rounds, ours, batches, 2.0))
    return figures


def _compressed(folder: Path, layout: str, size: tuple[int, int] = PACKED) -> list[Figure]:
    file = write(folder, layout, *size)
    naive, ours = naive_chunks(file, shuffled=False), stoker(file, "stream", "none")
    rounds = in_turn(file, [naive, ours])
    return [*_rates(layout, rounds), _ratio(layout, rounds, ours, [naive], 2.0)]


def _cold(file: DataFile) -> list[Figure]:
    probe = raw_read(file, load(file)["targets"], shuffled=False)
    ours = stoker(file, "stream", "none")
    rounds = in_turn(file, [probe, ours], before=lambda: forget(file))
    return [*_rates("cold", rounds), _ratio("cold", rounds, ours, [probe], 0.95)]


def forget(file: DataFile) -> None:
    """Its pages leave the cache of the system."""
    with file.path.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_turn(
    file: DataFile, arms: Sequence[Arm], before: Callable[[], None] | None = None
) -> Rounds:
    """An epoch of each a round; the arms are closed.

    Right before it another, which is not measured: memory that was not in use for a while is slow
    at first on a virtual machine. `before` makes the file cold again.
    """
    rounds: Rounds = {arm.name: [] for arm in arms}
    try:
        for number in range(ROUNDS):
            for arm in arms:
                epoch_of(file, arm, 2 * number)
                if before:
                    before()
                rounds[arm.name].append(epoch_of(file, arm, 2 * number + 1))
    finally:
        for arm in arms:
            arm.close()
    return rounds


def epoch_of(file: DataFile, arm: Arm, number: int) -> float:
    """Its rate, in GiB a second; each sample has to come once."""
    begin = time.perf_counter()
    targets = [batch["targets"][:, 0].clone() for batch in arm.epoch(number)]
    seconds = time.perf_counter() - begin
    found = sum(float(column.double().sum()) for column in targets)
    if sum(map(len, targets)) != file.samples or found != file.checksum:
        raise RuntimeError(f"{arm.name} did not bring each sample once")
    return file.bytes / seconds / GIB


def _rates(title: str, rounds: Rounds) -> list[Figure]:
    named = rounds.items()
    return [figure_of(f"{title}: {name}", "GiB/s", rates, COMMAND) for name, rates in named]


def _ratio(title: str, rounds: Rounds, ours: Arm, others: list[Arm], bound: float | None) -> Figure:
    """Of the rates within each round; of several others, that with the best median."""

    def median_rate(arm: Arm) -> float:
        return statistics.median(rounds[arm.name])

    best = max(others, key=median_rate)
    pairs = zip(rounds[ours.name], rounds[best.name], strict=True)
    ratios = [mine / other for mine, other in pairs]
    return figure_of(f"{title}: {ours.name} over {best.name}", "", ratios, COMMAND, bound)
