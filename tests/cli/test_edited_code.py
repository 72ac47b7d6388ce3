"""Code that is edited between submission and start: every command says so, and shows what ran."""

import sys
from pathlib import Path

import pytest
from sqlalchemy import insert, update

from app.settings import load_settings
from app.store import open_store
from app.store.tables import events, runs
from tests.cli.conftest import Answer
from tests.repository import committed, git
from tests.store.conftest import new_run

SUBMITTED = "a" * 40


def in_words(answer: Answer) -> str:
    assert answer.code == 0, answer.err
    return " ".join(answer.out.split())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("in_git", [True, False])
def test_an_edit_while_it_waits_is_told_and_shown(cli, up, tmp_path, monkeypatch, in_git):
    project = tmp_path / "project"
    project.mkdir()
    script = project / "train.py"
    script.write_text("import time\ntime.sleep(1.5)\nprint('first')\n")
    if in_git:
        committed(project)
    monkeypatch.chdir(project)
    holds = cli("run", "--json", "--", "sleep", "600").document["id"]
    run_id = cli("run", "--json", "--", sys.executable, "train.py").document["id"]
    script.write_text(script.read_text().replace("first", "second"))
    assert cli("kill", str(holds)).code == 0
    watched = cli("watch", str(run_id))
    assert "code changed The code has changed since the command was submitted" in watched.out
    end = f"It ran code that was edited after it was queued; `stoker show {run_id} --diff`"
    assert end in in_words(watched)
    shown = in_words(cli("show", str(run_id)))
    if in_git:
        commit = f"commit {git(project, 'rev-parse', 'HEAD')[:12]}"
    else:
        commit = "code in no git repository"
    assert f"code that ran {commit}. The code has" in shown
    diff = cli("show", str(run_id), "--diff").out
    assert diff.startswith("# The code has changed since the command was submitted")
    assert "+print('second')" in diff
    (project / "ran.diff").write_text(diff)
    script.write_text(script.read_text().replace("second", "first"))
    git(project, "apply", "ran.diff")
    assert "second" in script.read_text()


def change_code(store, run_id: int, seq: int, attempt: int, git_sha: str, diff: str) -> None:
    """Write down an attempt, and that it ran this code."""
    data = {"message": "It changed.", "git_sha": git_sha, "was": SUBMITTED, "diff": diff}
    row = {"run_id": run_id, "seq": seq, "t": 1.0, "attempt": attempt}
    with store.database.write() as connection:
        connection.execute(insert(events), {**row, "kind": "code_changed", "data": data})
        connection.execute(update(runs).where(runs.c.id == run_id).values(attempt=attempt))


def test_the_code_of_the_newest_attempt_counts(cli, api: Path):
    store = open_store(load_settings(home=api))
    code = {"git_sha": SUBMITTED, "dirty": True, "diff": "+submitted\n", "diff_bytes": 11,
            "argv": ["true"], "untracked": []}  # fmt: skip
    recipe = {"kind": "script", "argv": ["/bin/true"], "cwd": "/tmp", "environment": None}
    spec = {"name": "x", "recipe": recipe, "runtime": {"gpus": 0}}
    run_id = store.runs.create(
        new_run(recipe="script", dataset=None, code=code, spec=spec, request={"recipe": recipe})
    )[0].id
    assert cli("show", str(run_id), "--diff").out == "+submitted\n"
    assert "code that ran" not in cli("show", str(run_id)).out

    change_code(store, run_id, 10, 1, SUBMITTED, "+ran\n")
    said = cli("show", str(run_id), "--diff").out.splitlines()
    ran = f"# Attempt 1 ran commit {'a' * 12}, with these changes:"
    assert said == ["# It changed.", ran, "+ran"]

    change_code(store, run_id, 11, 2, "b" * 40, "")
    said = cli("show", str(run_id), "--diff").out.splitlines()
    commits = f"commit {'b' * 12}, and not commit {'a' * 12}, without changes."
    assert said == ["# It changed.", f"# Attempt 2 ran {commits}"]
    assert f"commit {'b' * 12}. It changed." in in_words(cli("show", str(run_id)))

    with store.database.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run_id).values(attempt=3))
    store.close()
    assert cli("show", str(run_id), "--diff").out == "+submitted\n", "attempt 3 ran it unchanged"
    assert cli("show", str(run_id), "--json").document["code"]["ran"] is None
