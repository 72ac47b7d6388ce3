"""What an arm takes of memory at its peak, in a process of its own."""

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import psutil

from benchmarks.loading.arms import Arm
from benchmarks.loading.files import DataFile

MIB, KIB = 2**20, 2**10
RESET_PEAK = "5"


def peaks(makers: Iterable[Callable[[], Arm]], file: DataFile) -> dict[str, float]:
    """MiB by arm, more than before it was made, over one epoch: the process's own peak, and at each
    batch what only its children have. Batches on their way between them count once they are there.
    """
    found = {}
    for make in makers:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            name, peak = pool.submit(_measure, make, file).result()
        found[name] = peak
    return found


def _measure(make: Callable[[], Arm], file: DataFile) -> tuple[str, float]:
    process, of_children = psutil.Process(), 0
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    before = process.memory_info().rss
    arm = make()
    samples = 0
    for batch in arm.epoch(0):
        samples += len(batch["targets"])
        of_children = max(of_children, sum(map(_private, process.children(recursive=True))))
    if samples != file.samples:
        raise RuntimeError(f"{arm.name} did not bring each sample once")
    peak = _own_peak()
    arm.close()
    return arm.name, (peak - before + of_children) / MIB


def _own_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) * KIB


def _private(child: psutil.Process) -> int:
    """Bytes that no other process shares; 0 once it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{child.pid}/smaps_rollup").read_text().splitlines()
        return KIB * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return 0
