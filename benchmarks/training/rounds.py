"""Epochs of training, an arm beside another, and what the one is worth of the other."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.confidence import FEWEST, lower_bound
from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import Arm
from benchmarks.training.training import Epoch, TimedTraining

Rounds = dict[str, list[Epoch]]
"""By arm."""
Ratios = dict[str, list[float]]
"""By arm, of its rate over that of another."""


class Turns:
    """An arm with a training of its own. One epoch after the other: in a run too, the next begins
    with what was read ahead.
    """

    def __init__(self, training: TimedTraining, arm: Arm) -> None:
        self.arm = arm
        self._training, self._numbers = training, itertools.count()

    def epochs(self, count: int) -> list[Epoch]:
        """So many, after one that is not measured: memory that was not in use for a while is slow
        at first on a virtual machine, and what the arm before reads ahead is read meanwhile.
        """
        self._epoch()
        return [self._epoch() for _ in range(count)]

    def _epoch(self) -> Epoch:
        return self._training.epoch(self.arm, next(self._numbers))


def beside(
    limit: Arm, arms: Sequence[Arm], training: Callable[[], TimedTraining], count: int
) -> tuple[Rounds, Ratios]:
    """Two epochs of each arm a round, between one of the limit and another: the pace of a virtual
    machine changes within seconds. Of two arms that are the same either is as often the faster. The
    arms are closed.
    """
    rounds: Rounds = {arm.name: [] for arm in (limit, *arms)}
    ratios: Ratios = {arm.name: [] for arm in arms}
    try:
        limits, every = Turns(training(), limit), [Turns(training(), arm) for arm in arms]
        [before] = limits.epochs(1)
        for _ in range(count):
            for turns in every:
                epochs, [after] = turns.epochs(2), limits.epochs(1)
                rounds[turns.arm.name] += epochs
                rounds[limit.name].append(after)
                seconds = sum(epoch.seconds for epoch in epochs)
                ratios[turns.arm.name].append((before.seconds + after.seconds) / seconds)
                before = after
    finally:
        for arm in (limit, *arms):
            arm.close()
    return rounds, ratios


def efficiency(
    model: str, arm: Arm, ratios: Sequence[float], bound: float | None, command: str
) -> Figure:
    """What is reached of the limit: its lower confidence bound (95 %); of fewer rounds, which show
    nothing with confidence, the median.
    """
    figure = figure_of(f"{model}: {arm.name} over in memory", "", ratios, command, bound)
    if len(ratios) < FEWEST:
        return figure
    also = {"median": figure.value}
    name = f"{figure.name}, lower bound"
    return replace(figure, name=name, value=lower_bound(ratios), also=also)
