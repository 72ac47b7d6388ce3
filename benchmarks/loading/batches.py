"""Measures what a batch is worth in an order of samples, and what that order costs to read.

The worth: independent samples whose mean label varies as much as that of batches which the
trainer's own order draws, beside what the plan tells. The rate: epochs streamed from a file, in
turn. Before: groups of 16,384 samples in blocks of 4 MiB. After: what a submission settles.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.planning.residency import MIB, DataMemory, Need
from app.planning.shuffle import (
    BLOCK_BYTES,
    Neighbours,
    Shuffle,
    independent_samples,
    settled_shuffle,
    stored_shuffle,
)
from app.spec.data import ChunkedLoader
from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import BATCH, CHUNK_BYTES, Arm
from benchmarks.loading.figures import forget
from benchmarks.loading.files import DataFile, write
from benchmarks.loading.rounds import in_turn, rates, ratio
from benchmarks.loading.stoker import stoker
from worker.trainer.data.order import Order
from worker.trainer.tools.content import neighbours_of

COMMAND = "python -m benchmarks batches"
Labels = NDArray[np.float64]
# Labels are drawn for so many samples of 1.5 KiB, which streams through chunks of 1 GiB.
SAMPLES, SAMPLE_BYTES, EPOCHS = 2**21, 1_584, 3
MEMORY = DataMemory(2 * 2**30 + 2**29, 2 * 2**30 + 2**29)
# Bytes of a file, and features of its samples: 1.5 KiB, 23 KiB and 235 KiB.
FILE_BYTES, FEATURES, ROUNDS = 768 * MIB, (1, 16, 167), 5
LEAST_OF_BEFORE = 0.95
WIDER_BLOCKS = (4 * BLOCK_BYTES,)


def measure(effort: Effort) -> list[Figure]:
    figures = [figure for made in MADE for figure in _worth(made)]
    for features in FEATURES:
        with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
            bytes_of_sample = 4 * (360 * features + 36)
            samples = effort.samples(FILE_BYTES // bytes_of_sample)
            figures += _rates(write(Path(folder), "contiguous", samples, features), effort)
    return figures


def board(random: np.random.Generator) -> Labels:
    """80 positions of a game have its result."""
    return np.repeat(random.choice([-1.0, 0.0, 1.0], SAMPLES // 80 + 1), 80)[:SAMPLES]


def windows(random: np.random.Generator) -> Labels:
    """A series in which each value is 0.999 of the one before, and noise."""
    series, value = np.empty(SAMPLES), 0.0
    for row, noise in enumerate(random.normal(0, np.sqrt(1 - 0.999**2), SAMPLES).tolist()):
        value = 0.999 * value + noise
        series[row] = value
    return series


def files(random: np.random.Generator) -> Labels:
    """32 files, each around a level of its own."""
    levels = np.repeat(random.normal(0, 1, 32), SAMPLES // 32)
    return levels + random.normal(0, 0.3, SAMPLES)


MADE: Mapping[Callable[[np.random.Generator], Labels], int] = {
    board: 4_096,
    windows: 512,
    files: 4_096,
}
"""Batch sizes by the function that makes the labels."""


def orders() -> dict[str, Shuffle]:
    """The orders that are compared, of the samples whose labels are drawn."""
    need = Need(SAMPLE_BYTES, 1, SAMPLES)
    loader = ChunkedLoader(residency="stream")
    return {
        "before": stored_shuffle(ChunkedLoader(shuffle="block"), SAMPLES, SAMPLE_BYTES),
        "after": settled_shuffle(loader, need, MEMORY, BATCH),
    }


def _worth(made: Callable[[np.random.Generator], Labels]) -> list[Figure]:
    labels, batch = made(np.random.default_rng(7)).astype(np.float32), MADE[made]
    told = neighbours_of([labels])
    if told is None:
        raise RuntimeError(f"{made.__name__} has labels that do not vary")
    like = Neighbours(tuple(told["distances"]), tuple(told["shares"]))
    figures = []
    for name, shuffle in orders().items():
        order = Order(SAMPLES, 7, shuffle.kind, shuffle.group, shuffle.block)
        means = [
            labels[order.rows(epoch, start, start + batch)].mean(dtype=np.float64)
            for epoch in range(EPOCHS)
            for start in range(0, SAMPLES - batch + 1, batch)
        ]
        worth = min(batch, float(labels.var(dtype=np.float64) / np.var(means)))
        planned = independent_samples(shuffle, batch, SAMPLES, like)
        also = {
            "by the plan": planned,
            "samples in a group": shuffle.group,
            "in a block": shuffle.block,
        }
        title = f"batches: {made.__name__}, {batch:,} samples are worth, {name}"
        figures.append(replace(figure_of(title, "", [worth], COMMAND), n=len(means), also=also))
    return figures


def _rates(file: DataFile, effort: Effort) -> list[Figure]:
    """Streamed from the page cache and from the disk, in the orders of before and after."""
    chunk = CHUNK_BYTES // file.sample_bytes
    before = stored_shuffle(ChunkedLoader(shuffle="block"), file.samples, file.sample_bytes)
    if before.group > chunk:  # it was made for a chunk that holds it
        before = stored_shuffle(
            ChunkedLoader(shuffle="block", shuffle_group=chunk), file.samples, file.sample_bytes
        )
    ways = {"before": before}
    for size in (BLOCK_BYTES, *WIDER_BLOCKS):
        block = max(1, size // file.sample_bytes)
        asked = ChunkedLoader(
            residency="stream", chunk_size=f"{CHUNK_BYTES // MIB}MiB", shuffle_block=block
        )
        need = Need(file.sample_bytes, 1, file.samples)
        ways[f"blocks of {size >> 10} KiB"] = settled_shuffle(asked, need, MEMORY, BATCH)
    figures: list[Figure] = []
    for title, cold in (("cached", False), ("cold", True)):
        arms = [_arm(file, name, shuffle) for name, shuffle in ways.items()]
        arms.append(_arm(file, "full order", Shuffle("full")))
        rounds = in_turn(
            file, arms, effort.rounds(ROUNDS), before=(lambda: forget(file)) if cold else None
        )
        told = f"batches, {file.sample_bytes / 1024:.3g} KiB {title}"
        figures += rates(told, file, rounds, COMMAND)
        for arm in arms[1:]:
            bound = LEAST_OF_BEFORE if arm is arms[1] else None
            figures.append(ratio(told, rounds, arm, arms[:1], bound, COMMAND))
    return figures


def _arm(file: DataFile, name: str, shuffle: Shuffle) -> Arm:
    sizes = (shuffle.group, shuffle.block) if shuffle.kind == "block" else (None, None)
    opened = stoker(file, "stream", shuffle.kind, CHUNK_BYTES, *sizes)
    return replace(opened, name=name)
