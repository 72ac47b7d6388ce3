"""What a process may use of its host: no more than its container's cores and memory; what it holds.

Read from the kernel's control groups of version 1 and 2. `root` is where /proc and /sys are found.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("/")
# Lines of /proc/PID/smaps_rollup: anonymous pages and shared memory, each page divided by those who
# have it.
OWN_PAGES = ("Pss_Anon:", "Pss_Shmem:")


class MemoryBound(NamedTuple):
    """Bytes that a control group may use, and those of them that are free."""

    limit: int
    free: int


@dataclass(frozen=True)
class Limits:
    """What bounds this process: cores that it may run on, and the least of its groups' limits.

    `cpu_quota` is cores' worth of time, `memory_bytes` the limit; None where nothing limits.
    """

    allowed_cores: int
    cpu_quota: float | None
    memory_bytes: int | None

    @property
    def cores(self) -> int:
        """Threads that can compute at once. One more than the quota would only be held up."""
        quota = self.allowed_cores if self.cpu_quota is None else math.floor(self.cpu_quota)
        return max(1, min(self.allowed_cores, quota))

    def as_json(self) -> dict[str, Any]:
        return {"cores": self.cores, **asdict(self)}


def limits(root: Path = ROOT) -> Limits:
    """As they are now; an administrator may change them while a process runs."""
    quotas = [quota for group in _groups("cpu", root) if (quota := _quota(group)) is not None]
    bounds = [bound.limit for bound in memory_bounds(root)]
    return Limits(len(os.sched_getaffinity(0)), min(quotas, default=None), _least(bounds, root))


def usable_cores(root: Path = ROOT) -> int:
    """Threads of this process that can compute at once."""
    return limits(root).cores


def total_memory(root: Path = ROOT) -> int:
    """Bytes of the host, or of the container where that may use less."""
    return min([_meminfo("MemTotal:", root), *(bound.limit for bound in memory_bounds(root))])


def available_memory(root: Path = ROOT) -> int:
    """Bytes that can be had without swapping, and within the container's limit."""
    return min([_meminfo("MemAvailable:", root), *(bound.free for bound in memory_bounds(root))])


def memory_bounds(root: Path = ROOT) -> list[MemoryBound]:
    """What the groups of this process and those above them allow; [] where nothing is limited."""
    bounds = (_memory_bound(group) for group in _groups("memory", root))
    return [bound for bound in bounds if bound is not None]


def oom_kills(root: Path = ROOT) -> int:
    """Processes that the kernel has killed for want of memory, host and own group together.

    Only differences mean something. Both counters are read because a container's limit counts in
    its group, and a container may not see the host's.
    """
    files = [root / "proc/vmstat"]
    for _, top, path in _hierarchies("memory", root):
        files += [top / path / "memory.events", top / path / "memory.oom_control"]
    return sum(_counter(file, "oom_kill") for file in files)


def held_memory(pid: int) -> int:
    """Bytes of a process's pages that are no file's. A page that several have, as copies of a fork
    server do, counts to each by its share. 0 once the process is gone.
    """
    lines = _lines(ROOT / f"proc/{pid}/smaps_rollup")
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(OWN_PAGES))


def _least(limited: list[int], root: Path) -> int | None:
    """None if no limit is below what there is: version 1 writes "none" as a huge number."""
    least = min(limited, default=None)
    return None if least is None or least >= _meminfo("MemTotal:", root) else least


def _hierarchies(controller: str, root: Path) -> Iterator[tuple[int, Path, str]]:
    """(Version, its top, the path below it) of each hierarchy that has the controller."""
    mounted, known = root / "sys/fs/cgroup", root / "proc/self/cgroup"
    for line in _lines(known):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield 2, mounted, path.lstrip("/")
        elif controller in controllers.split(","):
            # Mounted under the name of one of them, with links from the others' where it is usual.
            names = (controllers, controller)
            top = next((mounted / name for name in names if (mounted / name).is_dir()), None)
            if top is not None:
                yield 1, top, path.lstrip("/")


def _groups(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """(Version, folder) of this process's groups, and of those above them, which bound it too.

    A container of version 1 is told its path on the host, of which it sees the top alone.
    """
    for version, top, path in _hierarchies(controller, root):
        folder = top / path
        above = [one for one in folder.parents if one.is_relative_to(top)]
        for each in (folder, *above):
            if each.is_dir():
                yield version, each


def _quota(group: tuple[int, Path]) -> float | None:
    """Cores' worth of time that a group may take."""
    version, folder = group
    try:
        if version == 2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text()
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _memory_bound(group: tuple[int, Path]) -> MemoryBound | None:
    version, folder = group
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit, used, cache = names
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


def _meminfo(name: str, root: Path) -> int:
    return _counter(root / "proc/meminfo", name) * 1024


def _counter(path: Path, name: str) -> int:
    """The number behind a word in a file of lines; 0 where there is none."""
    return sum(int(line.split()[1]) for line in _lines(path) if line.split()[:1] == [name])


def _lines(path: Path) -> list[str]:
    """None of a file that cannot be read: not there, or this process has no descriptor left."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
