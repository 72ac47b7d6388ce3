"""Memory in use by this trainer and on its device, and the most that it was, in bytes."""

import os
import resource
from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch

from app.container import available_memory, held_memory

_PROCESS = psutil.Process()
# What an epoch may add to the host's memory, and how many in a row that add more are no chance.
LEAK_BYTES, LEAK_EPOCHS = 100_000_000, 3
KEPT_BY_TRAINER = (
    "Something is kept of each batch: look in the recipe's loss, measure and begin for lists, and "
    "for tensors that hold on to their graph (use .detach())."
)
KEPT_BY_LOADER = (
    "Something is kept of each sample: look in the dataset's __getitem__ for lists and for caches "
    "that have no bound. Until then data.loader.persistent_workers false gives it back with every "
    "epoch, for each begins with new processes."
)


class MemoryMeter:
    """Made before anything is built: what the process has by then are its imports."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._imports_bytes = _PROCESS.memory_info().rss
        self._most_beside = 0
        self._phase = "building"
        # What was noted of phases up to the running one's begin.
        self._most_on_host = self._most_on_device = 0
        self._by_phase: dict[str, int] = {}
        self._tells_phases = True

    def enter(self, phase: str) -> None:
        """A phase begins: from here on the peak is its own. Where the kernel does not let a process
        forget its peak, no phase is told.
        """
        self._note(self.peak_bytes())
        self._phase = phase
        if self._tells_phases:
            try:
                self.forget_peak()
            except OSError:
                self._tells_phases = False

    def _note(self, peak: int) -> None:
        """The peak where the model lies, of the running phase so far."""
        self._most_on_host = max(self._most_on_host, self.host_peak_bytes())
        if self._device.type == "cuda":
            self._most_on_device = max(self._most_on_device, peak)
        self._by_phase[self._phase] = max(self._by_phase.get(self._phase, 0), peak)

    def in_use(self, loader: Iterable[int] = ()) -> dict[str, Any]:
        """Host memory of this process, and of those of its `loader` what no other has too; the
        device's memory in use by anybody, and torch's share.

        `peak_memory` is what a memory plan is compared with: of these processes so far, on the
        host above the imports of this one, and of torch on the device (null on a CPU). `phases` has
        it of each phase, where the model lies; null where that cannot be told. What the loader's
        take is known as often as it is asked for.
        """
        beside = sum(map(_own_bytes, loader))
        self._most_beside = max(self._most_beside, beside)
        used: dict[str, Any] = {
            "host_memory_bytes": _PROCESS.memory_info().rss + beside,
            "gpu_memory_bytes": None,
            "torch_memory": None,
        }
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            free, total = torch.cuda.mem_get_info(self._device)
            used["gpu_memory_bytes"] = total - free
            stats = torch.cuda.memory_stats(self._device)  # once: each call builds all its numbers
            self._note(stats.get("allocated_bytes.all.peak", 0))
            used["torch_memory"] = {
                "allocated": stats.get("allocated_bytes.all.current", 0),
                "reserved": stats.get("reserved_bytes.all.current", 0),
                "peak": self._most_on_device,
            }
        else:
            self._note(self.host_peak_bytes())
        peak = {
            "host_bytes": self._most_on_host,
            "device_bytes": self._most_on_device if on_gpu else None,
            "phases": dict(self._by_phase) if self._tells_phases else None,
        }
        return used | {"peak_memory": peak}

    def host_peak_bytes(self) -> int:
        """The most that this process has had above its imports, since the last `forget_peak`, and
        those of its loader at any time.
        """
        return _most_resident() - self._imports_bytes + self._most_beside

    def peak_bytes(self) -> int:
        """The most where the model lies: torch's on a GPU, or this process's above its imports."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return self.host_peak_bytes()

    def forget_peak(self) -> None:
        """Begin anew with what is in use now; OSError where the kernel does not forget."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            Path("/proc/self/clear_refs").write_text("5")


class LeakWatch:
    """Looks at the end of each epoch at what the trainer and its loader's processes hold that is no
    file's.

    All that a training needs it has after its first epoch.
    """

    def __init__(self) -> None:
        self._at_ends: list[tuple[int, int]] = []
        self._has_told = False

    def epoch_done(self, loader: Collection[int] = ()) -> str | None:
        """A sentence, once, where memory has grown by too much in each of the last epochs.
        `loader`: the processes that read for the trainer now.
        """
        # Of the trainer what the kernel counts anyway: to walk its pages would take milliseconds a
        # GiB. What keeps batches of the loader's keeps shared memory.
        held = _status_bytes("RssAnon") + _status_bytes("RssShmem")
        self._at_ends = [*self._at_ends[-LEAK_EPOCHS:], (held, sum(map(held_memory, loader)))]
        first, last = self._at_ends[0], self._at_ends[-1]
        growth = [sum(after) - sum(before) for before, after in pairwise(self._at_ends)]
        if self._has_told or len(growth) < LEAK_EPOCHS or min(growth) <= LEAK_BYTES:
            return None
        self._has_told = True
        trainer, processes = (
            (end - begin) / len(growth) for begin, end in zip(first, last, strict=True)
        )
        of_which = (
            f" ({_mb(trainer)} of it in the trainer, {_mb(processes)} in its loader's processes)"
        )
        return (
            f"Host memory has grown by {_mb(trainer + processes)} an epoch over the last "
            f"{len(growth)}{of_which if processes else ''}, from {_mb(sum(first))} to "
            f"{_mb(sum(last))}, and will run out if that goes on. "
            f"{KEPT_BY_LOADER if processes > trainer else KEPT_BY_TRAINER}"
        )


def host_free_bytes() -> int:
    """What the host has for this process: what is available there, within the process's limits."""
    used = _PROCESS.memory_info()
    bounds = ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.data))
    limits = [(resource.getrlimit(kind)[0], taken) for kind, taken in bounds]
    left = [max(0, most - taken) for most, taken in limits if most != resource.RLIM_INFINITY]
    return min([available_memory(), *left])


def _most_resident() -> int:
    """The most memory that this process has had; the kernel keeps it, so no peak is missed."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    """A size that the kernel tells of this process."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"


def _own_bytes(pid: int) -> int:
    """Resident bytes of a process that are no file's and not shared memory; 0 once it is gone.

    Copies of one process, as of a fork server, count what they still have in common with each:
    to tell it apart takes the kernel milliseconds for each of them.
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
