"""What is asked for on a GPU alone, while a stream feeds each model."""

import time
import warnings
from collections.abc import Iterator, Sequence

import torch

from benchmarks.figures import Figure
from benchmarks.loading.arms import Arm
from benchmarks.loading.files import DataFile
from benchmarks.loading.stoker import too_large
from benchmarks.training.models import Subject
from benchmarks.training.training import Training

MIB = 2**20
MOST_PINNED_MIB = 512
LEAST_UTILIZATION_PERCENT = 95
UTILIZATION_SECONDS = 6.0
SYNCHRONIZED = "called a synchronizing CUDA operation"
RECURRENT = "LSTM"


def variants_on_gpu(subjects: Sequence[Subject]) -> Iterator[Subject]:
    """In bf16 and compiled. Not the LSTM: cuDNN's has no bf16 under autocast, and what compiles
    it breaks off at the recurrence (docs/lab-notes.md).
    """
    for subject in subjects:
        if subject.model != RECURRENT:
            yield Subject(subject.model, subject.device, bf16=True)
            yield Subject(subject.model, subject.device, compiled=True)


def on_gpu(file: DataFile, subjects: Sequence[Subject], command: str) -> list[Figure]:
    """Synchronizations, page-locked memory and utilization."""
    return [figure for subject in subjects for figure in _of_subject(subject, file, command)]


def _of_subject(subject: Subject, file: DataFile, command: str) -> Iterator[Figure]:
    _give_back_page_locked_memory()
    arm = too_large(file, subject.device)
    training = Training(subject, file)
    try:
        training.epoch(arm, 0)  # what is allocated once may synchronize
        count = synchronizations(training, arm, 1)
        used = list(_utilizations(training, arm))
    finally:
        arm.close()
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.peak"] / MIB
    name = subject.name
    yield Figure(f"{name}: synchronizations in an epoch", count, "times", 0.0, 1, command)
    yield Figure(f"{name}: page-locked memory", pinned, "MiB", MOST_PINNED_MIB, 1, command)
    mean, spread = sum(used) / len(used), (min(used), max(used))
    yield Figure(
        f"{name}: utilization",
        *(mean, "%", LEAST_UTILIZATION_PERCENT, len(used), command, spread),
        at_least=True,
    )


def _give_back_page_locked_memory() -> None:
    """What earlier arms took of it stays with PyTorch otherwise, and would be counted here."""
    torch._C._host_emptyCache()  # noqa: SLF001 - there is no public name for it (PyTorch 2.11)
    torch.cuda.reset_peak_host_memory_stats()


def synchronizations(training: Training, arm: Arm, number: int) -> int:
    """How often the steps of an epoch, or the loader beside them, waited for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            training.steps(arm, number)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(SYNCHRONIZED in str(warning.message) for warning in caught)


def _utilizations(training: Training, arm: Arm) -> Iterator[float]:
    """Percent, as NVML has it, at the end of each epoch for some seconds."""
    until, number = time.monotonic() + UTILIZATION_SECONDS, 2
    while time.monotonic() < until:
        training.epoch(arm, number)
        yield float(torch.cuda.utilization())
        number += 1
