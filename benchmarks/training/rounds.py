"""Epochs of training, one arm after the other, and what they are worth beside one another."""

import itertools
import statistics
from collections.abc import Sequence

from benchmarks.loading.arms import Arm
from benchmarks.loading.files import DataFile
from benchmarks.training.models import Subject
from benchmarks.training.training import Epoch, Training

Rounds = dict[str, list[Epoch]]
"""By arm."""
Ratios = dict[str, list[float]]
"""By arm, of its rate over that of another."""


class Turns:
    """An arm with a training of its own. One epoch after the other: in a run too, the next begins
    with what was read ahead.
    """

    def __init__(self, subject: Subject, file: DataFile, arm: Arm, *, warm: bool) -> None:
        """`warm`: each epoch that is measured comes after one that is not."""
        self.arm = arm
        self._training, self._numbers, self._warm = Training(subject, file), itertools.count(), warm

    def epoch(self) -> Epoch:
        if self._warm:
            self._training.epoch(self.arm, next(self._numbers))
        return self._training.epoch(self.arm, next(self._numbers))


def beside(
    limit: Arm,
    subject: Subject,
    file: DataFile,
    arms: Sequence[Arm],
    count: int,
    *,
    warm: bool = False,
) -> tuple[Rounds, Ratios]:
    """An epoch of each arm a round, each between two of the limit, and its rate over theirs: the
    pace of a virtual machine changes within seconds. The arms are closed.

    `warm`: each after another of the same arm, for arms that take new memory, which there is slow
    at first when it was not in use for a while.
    """
    rounds: Rounds = {arm.name: [] for arm in (limit, *arms)}
    ratios: Ratios = {arm.name: [] for arm in arms}
    limits = Turns(subject, file, limit, warm=warm)
    every = [Turns(subject, file, arm, warm=warm) for arm in arms]
    try:
        for turns in (*every, limits):
            turns.epoch()
        before = limits.epoch()
        for _ in range(count):
            for turns in every:
                epoch, after = turns.epoch(), limits.epoch()
                rounds[turns.arm.name].append(epoch)
                rounds[limit.name].append(after)
                around = statistics.mean((before.seconds, after.seconds))
                ratios[turns.arm.name].append(around / epoch.seconds)
                before = after
    finally:
        for arm in (limit, *arms):
            arm.close()
    return rounds, ratios
