"""The training that every loader feeds: epochs of one model, timed."""

import time
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.loading.arms import Arm, Batch, settle
from benchmarks.loading.files import DataFile
from benchmarks.training.models import Subject


class Epoch(NamedTuple):
    """Seconds of an epoch, and of them those that the training waited for batches."""

    seconds: float
    waited: float


class TimedTraining(ABC):
    """Of one model, which begins with the same weights each time, by epochs of so many samples."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    @abstractmethod
    def train(self, batch: Batch) -> int:
        """A step; how many samples the batch has."""

    def epoch(self, arm: Arm, number: int) -> Epoch:
        """Train an epoch, each sample of which has to come once; RuntimeError if it did not."""
        begin = time.perf_counter()
        waited = self.steps(arm, number)
        settle()
        return Epoch(time.perf_counter() - begin, waited)

    def steps(self, arm: Arm, number: int) -> float:
        """The steps of an epoch; the seconds that they waited for batches."""
        waited, samples, batches = 0.0, 0, iter(arm.epoch(number))
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            samples += self.train(batch)
        if samples != self._samples:
            raise RuntimeError(f"{arm.name} brought {samples} samples instead of {self._samples}")
        return waited


class Training(TimedTraining):
    """A model of the benchmark's own, and its optimizer."""

    def __init__(self, subject: Subject, file: DataFile) -> None:
        super().__init__(file.samples)
        self._subject = subject
        self._model = subject.build(file.features)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, fused=True)

    def train(self, batch: Batch) -> int:
        with self._subject.autocast():
            loss = nn.functional.l1_loss(self._model(batch["features"]), batch["targets"])
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch has no type for it
        self._optimizer.step()
        return len(batch["targets"])
