"""What the agent knows of its host: cores, memory, disk, versions."""

import os
import platform
import socket
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import app
from app.container import available_memory, limits, total_memory, usable_cores
from app.planning.imports import build_of
from app.spec.installed import INSTALLED
from app.spec.run import SPEC_VERSION
from worker.telemetry.toolchain import missing_tools

VERSIONED = ("torch", "h5py", "numpy", "safetensors")


def host_setup() -> dict[str, Any]:
    """Facts that do not change while the agent lives; a package that is not installed is absent."""
    return {
        "cores": usable_cores(),
        "host_memory_bytes": total_memory(),
        "limits": limits().as_json(),
        "shared_memory_bytes": _size_of(Path("/dev/shm")),  # noqa: S108  its size alone
        "missing_tools": missing_tools(),
        "platform": platform.platform(),
        "spec_version": SPEC_VERSION,
        "host": socket.gethostname(),
        "uid": os.getuid(),
        "recipes": INSTALLED.versions,
        "versions": {"stoker": app.__version__, "python": platform.python_version(), **_versions()},
    }


def host_now(artifact_root: Path) -> dict[str, Any]:
    """Facts that change from beat to beat: bytes of memory and of disk that are free."""
    usage = _usage_of(artifact_root)
    return {
        "available_memory_bytes": available_memory(),
        "disk_free_bytes": usage and int(usage.free),
        "disk_bytes": usage and int(usage.total),
    }


def free_bytes(root: Path) -> int | None:
    """Of the disk; None where the root cannot be asked."""
    usage = _usage_of(root)
    return usage and int(usage.free)


def _usage_of(root: Path) -> Any:
    """None where the root cannot be asked, as while its mount is away."""
    try:
        return psutil.disk_usage(str(root))
    except OSError:
        return None


def _size_of(folder: Path) -> int | None:
    return psutil.disk_usage(str(folder)).total if folder.is_dir() else None


@cache
def torch_has_cuda() -> bool:
    """Whether the installed torch is not a build for the CPU alone; without importing it."""
    return build_of(_versions().get("torch", "")) == "cuda"


def _versions() -> dict[str, str]:
    found = {}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
