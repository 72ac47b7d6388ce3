"""What git says of code: Stoker's own, and a user's, with a real git."""

import pytest

from app.codestate import DIFF_BYTES, checkout, code_state
from tests.repository import committed, git


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "code.py").write_text("1")
    return committed(folder)


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


def test_a_long_diff_is_cut_between_characters_and_says_so(repository):
    (repository / "inner" / "code.py").write_text("ä" * (DIFF_BYTES * 11 // 20))
    state = code_state(repository, [])
    kept, _, told = state["diff"].partition("\n[cut: ")
    assert DIFF_BYTES - 2 < len(kept.encode()) <= DIFF_BYTES
    assert kept.endswith("ä")
    assert told == f"the whole diff has {state['diff_bytes']:,} bytes]\n"
    assert state["diff_bytes"] > DIFF_BYTES * 11 // 10


def test_without_git_or_a_commit_nothing_is_said(repository, monkeypatch):
    empty = repository.parent / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    assert checkout(empty) == {}
    monkeypatch.setenv("PATH", str(empty))
    assert checkout(repository) == {}
