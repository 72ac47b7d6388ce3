"""An epoch of each arm in turn, and what ours is worth beside the others."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import Arm
from benchmarks.loading.files import DataFile

ROUNDS = 5
GIB = 2**30


class Epoch(NamedTuple):
    """GiB a second of an epoch, and milliseconds to its first batch."""

    rate: float
    first_batch: float


Rounds = dict[str, list[Epoch]]
"""By arm."""


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


def epoch_of(file: DataFile, arm: Arm, number: int) -> Epoch:
    """One epoch, of which each sample has to come once."""
    begin = time.perf_counter()
    batches = iter(arm.epoch(number))
    targets = [next(batches)["targets"][:, 0].clone()]
    first = time.perf_counter() - begin
    targets += [batch["targets"][:, 0].clone() for batch in batches]
    seconds = time.perf_counter() - begin
    found = sum(float(column.double().sum()) for column in targets)
    if sum(map(len, targets)) != file.samples or found != file.checksum:
        raise RuntimeError(f"{arm.name} did not bring each sample once")
    return Epoch(file.bytes / seconds / GIB, first * 1e3)


def rates(title: str, rounds: Rounds, command: str) -> list[Figure]:
    return [
        figure_of(f"{title}: {name}", "GiB/s", [epoch.rate for epoch in epochs], command)
        for name, epochs in rounds.items()
    ]


def first_batches(title: str, rounds: Rounds, arms: Sequence[Arm], command: str) -> list[Figure]:
    return [
        figure_of(
            f"{title}: first batch, {arm.name}",
            *("ms", [epoch.first_batch for epoch in rounds[arm.name]], command),
        )
        for arm in arms
    ]


def ratio(
    title: str,
    rounds: Rounds,
    ours: Arm,
    others: Sequence[Arm],
    bound: float | None,
    command: str,
) -> Figure:
    """Of the rates within each round; of several others, that with the best median."""

    def median_rate(arm: Arm) -> float:
        return statistics.median(epoch.rate for epoch in rounds[arm.name])

    best = max(others, key=median_rate)
    pairs = zip(rounds[ours.name], rounds[best.name], strict=True)
    ratios = [mine.rate / other.rate for mine, other in pairs]
    return figure_of(f"{title}: {ours.name} over {best.name}", "", ratios, command, bound)
