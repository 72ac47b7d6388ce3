"""What the agent finds out about its host and its own code, with a real git."""

import os
import subprocess

import pytest

from worker.host import checkout, host_now, host_setup
from worker.preparation import threads_of


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


def test_the_facts_of_this_host_fit_together(tmp_path):
    fixed, now = host_setup(), host_now(tmp_path)
    assert fixed["cores"] >= 1
    assert 0 < now["available_memory_bytes"] <= fixed["host_memory_bytes"]
    assert fixed["shared_memory_bytes"] is None or fixed["shared_memory_bytes"] > 0
    assert now["disk_free_bytes"] > 0


def test_an_agent_has_what_its_container_has(tmp_path, monkeypatch):
    """And not what the host has; how it is found is in the tests of app/container.py."""
    allowed = {"usable_cores": 3, "total_memory": 8 * 2**30, "available_memory": 5 * 2**30}
    for name, value in allowed.items():
        monkeypatch.setattr(f"worker.host.{name}", lambda value=value: value)
    monkeypatch.setattr("worker.preparation.usable_cores", lambda: 3)
    told = {**host_setup(), **host_now(tmp_path)}
    names = ("cores", "host_memory_bytes", "available_memory_bytes")
    assert [told[name] for name in names] == list(allowed.values())
    assert [threads_of("auto", slots) for slots in (1, 3)] == [3, 1]
