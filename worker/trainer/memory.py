"""Memory in use by this trainer and on its device, and the most that it was, in bytes."""

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch

from app.container import available_memory

_PROCESS = psutil.Process()


class MemoryMeter:
    """Made before anything is built: what the process has by then are its imports."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._imports_bytes = _PROCESS.memory_info().rss
        self._most_beside = 0

    def in_use(self, loader: Iterable[int] = ()) -> dict[str, Any]:
        """Host memory of this process, and of those of its `loader` what no other has too; the
        device's memory in use by anybody, and torch's share.

        `peak_memory` is what a memory plan is compared with: of these processes so far, on the
        host above the imports of this one, and of torch on the device (null on a CPU). What the
        loader's take is known as often as it is asked for.
        """
        beside = sum(map(_own_bytes, loader))
        self._most_beside = max(self._most_beside, beside)
        used: dict[str, Any] = {
            "host_memory_bytes": _PROCESS.memory_info().rss + beside,
            "gpu_memory_bytes": None,
            "torch_memory": None,
        }
        peak: dict[str, int | None] = {"host_bytes": self.host_peak_bytes(), "device_bytes": None}
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            used["gpu_memory_bytes"] = total - free
            stats = torch.cuda.memory_stats(self._device)  # once: each call builds all its numbers
            used["torch_memory"] = {
                "allocated": stats.get("allocated_bytes.all.current", 0),
                "reserved": stats.get("reserved_bytes.all.current", 0),
                "peak": stats.get("allocated_bytes.all.peak", 0),
            }
            peak["device_bytes"] = used["torch_memory"]["peak"]
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


def host_free_bytes() -> int:
    """What the host has for this process: what is available there, within the process's limits."""
    used = _PROCESS.memory_info()
    bounds = ((resource.RLIMIT_AS, used.vms), (resource.RLIMIT_DATA, used.data))
    limits = [(resource.getrlimit(kind)[0], taken) for kind, taken in bounds]
    left = [max(0, most - taken) for most, taken in limits if most != resource.RLIM_INFINITY]
    return min([available_memory(), *left])


def _most_resident() -> int:
    """The most memory that this process has had; the kernel keeps it, so no peak is missed."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


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
