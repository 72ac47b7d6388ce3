"""What a process may use, from made-up /proc and /sys/fs/cgroup of both versions."""

import os
from pathlib import Path
from typing import Any

import pytest

from app.container import (
    Limits,
    MemoryBound,
    available_memory,
    limits,
    memory_bounds,
    oom_kills,
    total_memory,
    usable_cores,
)

GIB = 2**30


class Host:
    """A root with 64 GiB of memory, 40 of them free, of which 8 cores may be used."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc", meminfo="MemTotal: 67108864 kB\nMemAvailable: 41943040 kB")

    def write(self, folder: str, **files: Any) -> None:
        """Keyword names have `__` for a dot."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (self.root / folder / name.replace("__", ".")).write_text(f"{content}\n")

    def member_of(self, *lines: str) -> None:
        self.write("proc/self", cgroup="\n".join(lines))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    return Host(tmp_path)


def test_without_limits_a_process_has_the_host(host: Host) -> None:
    host.member_of("0::/nowhere", "2:cpu:/")
    assert limits(host.root) == Limits(8, None, None)
    assert usable_cores(host.root) == 8
    assert total_memory(host.root) == 64 * GIB
    assert available_memory(host.root) == 40 * GIB
    assert memory_bounds(host.root) == []


def test_a_kernel_without_control_groups_limits_nothing(host: Host) -> None:
    assert limits(host.root) == Limits(8, None, None)


def test_a_container_of_version_2_is_the_top(host: Host) -> None:
    host.member_of("0::/")
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 7"
    held = {"memory__max": 8 * GIB, "memory__current": 3 * GIB, "memory__stat": stat}
    host.write("sys/fs/cgroup", cpu__max="200000 100000", **held)
    assert memory_bounds(host.root) == [MemoryBound(8 * GIB, 6 * GIB)]
    assert limits(host.root) == Limits(8, 2.0, 8 * GIB)
    assert usable_cores(host.root) == 2
    assert total_memory(host.root) == 8 * GIB
    assert available_memory(host.root) == 6 * GIB


def test_a_container_of_version_1_is_found_by_its_top(host: Host) -> None:
    host.member_of("5:cpu,cpuacct:/docker/abc", "4:memory:/docker/abc", "0::/docker/abc")
    host.write(
        "sys/fs/cgroup/memory",
        memory__limit_in_bytes=2 * GIB,
        memory__usage_in_bytes=3 * GIB,
        memory__stat=f"inactive_file 1\ntotal_inactive_file {GIB}",
    )
    host.write("sys/fs/cgroup/cpu,cpuacct", cpu__cfs_quota_us=300000, cpu__cfs_period_us=100000)
    assert memory_bounds(host.root) == [MemoryBound(2 * GIB, 0)]
    assert limits(host.root) == Limits(8, 3.0, 2 * GIB)
    assert usable_cores(host.root) == 3


def test_version_1_without_limits_is_no_limit(host: Host) -> None:
    host.member_of("5:cpu:/a", "4:memory:/a")
    host.write("sys/fs/cgroup/cpu/a", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    unlimited = {"memory__limit_in_bytes": 9223372036854771712, "memory__usage_in_bytes": GIB}
    host.write("sys/fs/cgroup/memory/a", **unlimited)
    assert limits(host.root) == Limits(8, None, None)
    assert total_memory(host.root) == 64 * GIB
    assert available_memory(host.root) == 40 * GIB


def test_limits_above_count_too_and_the_least_holds(host: Host) -> None:
    host.member_of("0::/team.slice/agent.service")
    usual = {"memory__current": GIB, "memory__stat": "anon 5"}
    host.write("sys/fs/cgroup/team.slice", memory__max=4 * GIB, cpu__max="150000 100000", **usual)
    host.write(
        "sys/fs/cgroup/team.slice/agent.service", memory__max="max", cpu__max="max 100000", **usual
    )
    assert memory_bounds(host.root) == [MemoryBound(4 * GIB, 3 * GIB)]
    assert limits(host.root).as_json() == {
        "cores": 1,
        "allowed_cores": 8,
        "cpu_quota": 1.5,
        "memory_bytes": 4 * GIB,
    }


@pytest.mark.parametrize(("quota", "cores"), [(0.25, 1), (1.0, 1), (2.5, 2), (100.0, 8)])
def test_cores_are_whole_ones_within_the_quota(quota: float, cores: int) -> None:
    assert Limits(8, quota, None).cores == cores


def test_kills_are_counted_on_the_host_and_in_the_own_group(host: Host) -> None:
    host.write("proc", vmstat="pgfault 9\noom_kill 2")
    host.member_of("4:memory:/a", "0::/b")
    host.write("sys/fs/cgroup/memory/a", memory__oom_control="oom_kill_disable 0\noom_kill 4")
    host.write("sys/fs/cgroup/b", memory__events="oom 9\noom_kill 8")
    assert oom_kills(host.root) == 2 + 4 + 8


def test_what_cannot_be_read_counts_nothing(host: Host) -> None:
    """As in a process that has no descriptor left."""
    (host.root / "proc/self/cgroup").mkdir(parents=True)
    assert oom_kills(host.root) == 0
    assert limits(host.root) == Limits(8, None, None)


def test_this_hosts_own_figures_fit_together() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
    assert 0 < available_memory() <= total_memory()
    assert oom_kills() >= 0
