"""What an attempt ran on: versions of Python, PyTorch, CUDA and the driver."""

import platform
import re
from pathlib import Path
from typing import Any

import safetensors
import torch

from app import __version__

_DRIVER = Path("/proc/driver/nvidia/version")


def describe_environment(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "stoker": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "driver": _driver_version() if on_gpu else None,
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
    }


def _driver_version() -> str | None:
    """As the kernel module says it: asking NVML can hang on a wedged driver."""
    if not _DRIVER.exists():
        return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", _DRIVER.read_text())
    return found.group() if found else None
