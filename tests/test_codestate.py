"""What git says of code: Stoker's own, and a user's, with a real git."""

import os

import pytest

from app.codestate import DIFF_BYTES, SOURCES_BYTES, changes_since, checkout, code_state
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


@pytest.fixture
def plain(tmp_path):
    """A folder in no repository."""
    folder = tmp_path / "plain"
    folder.mkdir()
    for name in ("train.py", "model.py", "config.yaml", "notes.txt"):
        (folder / name).write_text(f"{name}\n")
    return folder


COMMAND = ["python", "train.py", "--config", "config.yaml", "--log", "notes.txt"]


@pytest.mark.parametrize("name", ["train.py", "model.py"])
def test_an_edit_outside_of_a_repository_is_noticed(plain, name):
    before = code_state(plain, COMMAND)
    assert changes_since(before, plain) is None
    (plain / name).write_text("edited")
    changed = changes_since(before, plain)
    assert changed is not None
    assert f"-{name}\n+edited\n" in changed["diff"]
    assert changed["git_sha"] is None


def test_what_a_script_writes_is_no_edit_of_its_code(plain):
    before = code_state(plain, COMMAND)
    (plain / "notes.txt").write_text("epoch 1")
    (plain / "new.py").write_text("1")
    (plain / "model.py").unlink()
    assert changes_since(before, plain) is None


def test_of_a_repository_only_untracked_code_is_kept(plain):
    git(plain, "init", "--quiet")
    git(plain, "add", "train.py")
    git(plain, "commit", "--quiet", "-m", "first")
    before = code_state(plain, COMMAND)
    assert set(before["sources"]) == {"model.py"}
    (plain / "train.py").write_text("edited")
    (plain / "model.py").write_text("edited too")
    changed = changes_since(before, plain)
    assert changed is not None
    assert [changed["diff"].count(f"+++ b/{one}") for one in ("train.py", "model.py")] == [1, 1]


def test_odd_files_beside_a_script_do_no_harm(plain):
    os.mkfifo(plain / "pipe.py")
    (plain / "large.py").write_text("x" * (SOURCES_BYTES + 1))
    (plain / "dir.py").mkdir()
    (plain / "odd.py").write_bytes(b"\xff\0")
    sources = code_state(plain, ["python", "train.py", "missing.py"])["sources"]
    assert set(sources) == {"train.py", "model.py", "odd.py"}
    assert sources["odd.py"] == "\ufffd\ufffd"


def test_a_repository_that_is_made_meanwhile_is_no_edit(plain):
    before = code_state(plain, COMMAND)
    committed(plain)
    assert changes_since(before, plain) is None


def test_a_folder_that_has_gone_is_no_edit(plain):
    before = code_state(plain, COMMAND)
    plain.rename(plain.with_name("gone"))
    assert changes_since(before, plain) is None
