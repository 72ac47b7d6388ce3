"""What the agent finds out about its host and its own code, with a real git."""

import os
import subprocess

import pytest

from worker.host import MemoryBound, checkout, host_now, host_setup, memory_bounds


def git(folder, *arguments):
    name = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *name, "-C", str(folder), *arguments],
        env=clean, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "code.py").write_text("1")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_a_checkout_is_known_by_its_commit_and_whether_it_was_changed(repository):
    sha = git(repository, "rev-parse", "HEAD")
    assert checkout(repository) == {"git_sha": sha, "git_dirty": False}
    (repository / "inner" / "code.py").write_text("2")
    assert checkout(repository) == {"git_sha": sha, "git_dirty": True}


def test_a_git_of_somebody_else_says_nothing_about_stoker(repository, monkeypatch):
    assert checkout(repository / "inner") == {}, "as of an environment inside a user's repository"
    elsewhere = repository.parent / "elsewhere"
    elsewhere.mkdir()
    git(elsewhere, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))
    assert checkout(repository)["git_sha"] == git(repository, "rev-parse", "HEAD")


def test_without_git_or_a_commit_nothing_is_said(repository, monkeypatch):
    empty = repository.parent / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    assert checkout(empty) == {}
    monkeypatch.setenv("PATH", str(empty))
    assert checkout(repository) == {}


GIB = 2**30


def cgroup(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def test_the_memory_of_a_container_ends_at_its_limit(tmp_path):
    """As cgroup version 2 shows it inside: the container is the top."""
    stat = "anon 5\ninactive_file 1073741824\nactive_file 7"
    held = {"memory.max": 8 * GIB, "memory.current": 3 * GIB, "memory.stat": stat}
    cgroup(tmp_path, held)
    assert memory_bounds("0::/", tmp_path) == [MemoryBound(8 * GIB, 6 * GIB)]


def test_limits_above_count_too_and_those_without_do_not(tmp_path):
    usual = {"memory.current": GIB, "memory.stat": "anon 5"}
    cgroup(tmp_path / "team.slice", {"memory.max": 4 * GIB, **usual})
    cgroup(tmp_path / "team.slice" / "agent.service", {"memory.max": "max", **usual})
    found = memory_bounds("0::/team.slice/agent.service", tmp_path)
    assert found == [MemoryBound(4 * GIB, 3 * GIB)]


def test_a_container_of_version_1_is_found_by_its_top(tmp_path):
    stat = f"inactive_file 1\ntotal_inactive_file {GIB}"
    held = {"memory.limit_in_bytes": 2 * GIB, "memory.usage_in_bytes": 3 * GIB, "memory.stat": stat}
    cgroup(tmp_path / "memory", held)
    text = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc"
    assert memory_bounds(text, tmp_path) == [MemoryBound(2 * GIB, 0)]


def test_no_cgroup_of_memory_is_no_bound(tmp_path):
    assert memory_bounds("0::/nowhere\n2:cpu:/", tmp_path) == []


def test_the_facts_of_this_host_fit_together(tmp_path):
    fixed, now = host_setup(), host_now(tmp_path)
    assert fixed["cores"] >= 1
    assert 0 < now["available_memory_bytes"] <= fixed["host_memory_bytes"]
    assert fixed["shared_memory_bytes"] is None or fixed["shared_memory_bytes"] > 0
    assert now["disk_free_bytes"] > 0
