"""What the agent knows of its host: cores, memory, versions, its checkout, out-of-memory kills."""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import app
from app.spec.imports import build_of
from worker.toolchain import missing_tools

GIT_SECONDS = 5.0
VERSIONED = ("torch", "h5py", "numpy", "safetensors")


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def host_setup() -> dict[str, Any]:
    """Facts that do not change while the agent lives; a package that is not installed is absent."""
    return {
        "cores": usable_cores(),
        "host_memory_bytes": min(
            [psutil.virtual_memory().total, *(bound.limit for bound in _bounds())]
        ),
        "shared_memory_bytes": _size_of(Path("/dev/shm")),  # noqa: S108  its size alone
        "missing_tools": missing_tools(),
        "platform": platform.platform(),
        "versions": {"stoker": app.__version__, "python": platform.python_version(), **_versions()},
    }


def checkout(folder: Path) -> dict[str, Any]:
    """`git_sha` and `git_dirty` of the checkout at `folder`; {} where there is none, or no git.

    Only one whose top is `folder`: an installed Stoker may lie inside somebody's other repository.
    """
    if not (folder / ".git").exists():
        return {}
    sha = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "--no-optional-locks", "status", "--porcelain")
    if sha is None or changed is None:
        return {}
    return {"git_sha": sha, "git_dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            env=clean,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def host_now(artifact_root: Path) -> dict[str, Any]:
    """Facts that change from beat to beat: bytes of memory and of disk that are free."""
    return {
        "available_memory_bytes": min(
            [psutil.virtual_memory().available, *(bound.free for bound in _bounds())]
        ),
        "disk_free_bytes": free_bytes(artifact_root),
    }


def free_bytes(root: Path) -> int | None:
    """None where the root cannot be asked, as while its mount is away."""
    try:
        return int(psutil.disk_usage(str(root)).free)
    except OSError:
        return None


class MemoryBound(NamedTuple):
    """Bytes that a cgroup may use, and those of them that are free."""

    limit: int
    free: int


def _bounds() -> list[MemoryBound]:
    return memory_bounds(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"))


def memory_bounds(cgroup: str, root: Path) -> list[MemoryBound]:
    """What the cgroups of a process and those above them allow; a container's are no more than its
    limit, though it sees the memory of the whole host.
    """
    found = []
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = top / path.lstrip("/")
        # A container of version 1 is told its path on the host, of which it sees the top alone.
        for each in (folder, *(above for above in folder.parents if above.is_relative_to(top))):
            bound = _bound_of(each, *names)
            if bound is not None:
                found.append(bound)
    return found


def _bound_of(folder: Path, limit: str, used: str, cache: str) -> MemoryBound | None:
    try:
        allowed = (folder / limit).read_text().strip()
        taken = int((folder / used).read_text())
    except OSError:
        return None
    if allowed == "max":
        return None
    # The kernel drops the cache of files that nobody has read for a while before it refuses memory.
    kept = max(0, taken - _counter(folder / "memory.stat", cache))
    return MemoryBound(int(allowed), max(0, int(allowed) - kept))


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


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory, host and own cgroup together.

    Only differences mean something. Both counters are read because a container's limit counts in
    its cgroup, and a container may not see the host's.
    """
    counted = _counter(Path("/proc/vmstat"), "oom_kill")
    for path in _cgroup_counters(Path("/proc/self/cgroup").read_text()):
        counted += _counter(path, "oom_kill")
    return counted


def _cgroup_counters(cgroup: str) -> list[Path]:
    """Files with an `oom_kill` line, for cgroup v2 (`0::/path`) and v1 (`4:memory:/path`)."""
    files = []
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files.append(Path("/sys/fs/cgroup" + path) / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(Path("/sys/fs/cgroup/memory" + path) / "memory.oom_control")
    return files


def _counter(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[:1] == [name])
