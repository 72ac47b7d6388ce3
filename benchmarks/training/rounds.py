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

    def __init__(self, subject: Subject, file: DataFile, arm: Arm) -> None:
        self.arm = arm
        self._training, self._numbers = Training(subject, file), itertools.count()

    def epoch(self) -> Epoch:
        return self._training.epoch(self.arm, next(self._numbers))


def in_turn(subject: Subject, file: DataFile, arms: Sequence[Arm], count: int) -> Rounds:
    """An epoch of each arm a round, and before the first one that is not measured; on a host before
    each: memory that was not in use for a while is slow at first on a virtual machine. The arms are
    closed.
    """
    rounds: Rounds = {arm.name: [] for arm in arms}
    every = [Turns(subject, file, arm) for arm in arms]
    try:
        for number in range(count):
            for turns in every:
                if number == 0 or subject.device == "cpu":
                    turns.epoch()
                rounds[turns.arm.name].append(turns.epoch())
    finally:
        for arm in arms:
            arm.close()
    return rounds


def beside(
    limit: Arm, subject: Subject, file: DataFile, arms: Sequence[Arm], count: int
) -> tuple[Rounds, Ratios]:
    """An epoch of each arm a round, each between two of the limit, and its rate over theirs: the
    pace of a virtual machine changes within seconds. The arms are closed.
    """
    rounds: Rounds = {arm.name: [] for arm in (limit, *arms)}
    ratios: Ratios = {arm.name: [] for arm in arms}
    limits, every = Turns(subject, file, limit), [Turns(subject, file, arm) for arm in arms]
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
