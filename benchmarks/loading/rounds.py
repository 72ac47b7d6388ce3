"""An epoch of each arm in turn, and what ours is worth beside the others."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import GIB, Epoch, Runner
from benchmarks.loading.files import DataFile

ROUNDS = 5

Rounds = dict[str, list[Epoch]]
"""By arm."""


def in_turn(
    file: DataFile, arms: Sequence[Runner], count: int, before: Callable[[], None] | None = None
) -> Rounds:
    """An epoch of each a round; the arms are closed.

    Right before it another, which is not measured: memory that was not in use for a while is slow
    at first on a virtual machine. `before` makes the file cold again.
    """
    rounds: Rounds = {arm.name: [] for arm in arms}
    try:
        for number in range(count):
            for arm in arms:
                arm.run(file, 2 * number)
                if before:
                    before()
                rounds[arm.name].append(arm.run(file, 2 * number + 1))
    finally:
        for arm in arms:
            arm.close()
    return rounds


def rates(
    title: str,
    file: DataFile,
    rounds: Rounds,
    command: str,
    probe: Runner | None = None,
    peaks: Mapping[str, float] = MappingProxyType({}),
) -> list[Figure]:
    """A figure of each arm, with all else that is known of its epochs; `peaks`: MiB by arm."""

    def rate(name: str) -> float:
        return statistics.median(epoch.rate for epoch in rounds[name])

    figures = []
    for name, epochs in rounds.items():
        also = {
            "samples/s": rate(name) * GIB / file.sample_bytes,
            "host µs a batch": statistics.median(epoch.host for epoch in epochs),
            "ms to the first": statistics.median(epoch.first_batch for epoch in epochs),
        }
        if probe is not None:
            also["of the probe"] = rate(name) / rate(probe.name)
        if name in peaks:
            also["MiB at the peak"] = peaks[name]
        figure = figure_of(f"{title}: {name}", "GiB/s", [e.rate for e in epochs], command)
        figures.append(replace(figure, also=also))
    return figures


def ratio(
    title: str,
    rounds: Rounds,
    ours: Runner,
    others: Sequence[Runner],
    bound: float | None,
    command: str,
    seen: float | None = None,
) -> Figure:
    """Of the rates within each round; of several others, that with the best median."""

    def median_rate(arm: Runner) -> float:
        return statistics.median(epoch.rate for epoch in rounds[arm.name])

    best = max(others, key=median_rate)
    pairs = zip(rounds[ours.name], rounds[best.name], strict=True)
    ratios = [mine.rate / other.rate for mine, other in pairs]
    figure = figure_of(f"{title}: {ours.name} over {best.name}", "", ratios, command, bound)
    return replace(figure, seen=seen)
