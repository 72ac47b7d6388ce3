"""Memory in use by this trainer and on its device, in bytes."""

from typing import Any

import psutil
import torch

_PROCESS = psutil.Process()


def memory_in_use(device: torch.device) -> dict[str, Any]:
    """Host memory of this process; the device's memory in use by anybody, and torch's share."""
    used: dict[str, Any] = {
        "host_memory_bytes": _PROCESS.memory_info().rss,
        "gpu_memory_bytes": None,
        "torch_memory": None,
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        used["gpu_memory_bytes"] = total - free
        stats = torch.cuda.memory_stats(device)  # once: each call builds all of its numbers
        used["torch_memory"] = {
            "allocated": stats.get("allocated_bytes.all.current", 0),
            "reserved": stats.get("reserved_bytes.all.current", 0),
            "peak": stats.get("allocated_bytes.all.peak", 0),
        }
    return used
