"""`stoker run` with a script that is not there: refused before anything is asked of a service."""

import sys

import pytest
from typer.testing import CliRunner

from app.cli.failures import CommandFailed, issue_lines
from app.cli.main import app
from app.cli.run import OPTIONS, _in_copy, _require_script


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "night.sh").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            (sys.executable, "trian.py", "--lr", "3"),
            "trian.py in {}. Did you mean train.py?",
        ),
        (("python3.11", "-u", "-W", "error", "tran.py"), "Did you mean train.py?"),
        (("bash", "-eu", "jobs/nigth.sh"), "Did you mean jobs/night.sh?"),
        (("python", "nothing/like.py"), "There is no file nothing/like.py in {}."),
    ],
)
def test_a_file_that_is_not_there_is_asked_about(project, command, said):
    with pytest.raises(CommandFailed) as refused:
        _require_script(project, list(command))
    assert said.format(project) in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        ("python", "train.py", "no.py"),
        ("python", "-X", "dev", "train.py"),
        ("python", "-m", "anything.at.all"),
        ("python", "-c", "print()"),
        ("python", "-"),
        ("python",),
        ("bash", "-c", "nothing.sh"),
        ("bash", "-ec", "nothing.sh"),
        ("bash", "--rcfile", "nothing.sh", "no.sh"),
        ("python", "-uc", "print()"),
        ("bash", "-euo", "pipefail", "jobs/night.sh"),
        ("torchrun", "no.py"),
        ("./no.py",),
    ],
)
def test_what_is_no_file_or_is_there_is_taken(project, command):
    _require_script(project, list(command))


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_what_follows_the_command_is_its_own(cli, home, dashes):
    answer = cli("run", *dashes, "no-such-program", "--gpus", "2", "--steps", "100")
    assert answer.code == 5
    assert "'no-such-program' is not in PATH" in answer.err


def test_a_command_in_quotes_is_told_without_them(cli, home):
    answer = cli("run", "--", "python train.py --lr 1")
    assert "Leave out the quotes: stoker run -- python train.py --lr 1" in answer.err


def test_a_python_that_git_does_not_copy_stays_the_one_it_is(project, tmp_path):
    copy = tmp_path / "copy"
    (copy / "jobs").mkdir(parents=True)
    (copy / "jobs" / "night.sh").touch()
    python, script = (str(project / name) for name in (".venv/bin/python", "jobs/night.sh"))
    assert _in_copy(python, project, copy) == python
    assert _in_copy(script, project, copy) == str(copy / "jobs" / "night.sh")
    assert _in_copy("/bin/sh", project, copy) == "/bin/sh"


def test_a_fix_is_told_by_the_option_of_the_command():
    issue = {
        "severity": "error", "code": "cannot_be_launched", "loc": ["recipe", "launch"],
        "message": "It is no Python.",
        "fix": [
            {"op": "add", "path": "/recipe/launch", "value": "none"},
            {"op": "add", "path": "/runtime", "value": {"gpus": 1, "other": "a b"}},
        ],
    }  # fmt: skip
    fix = "    fix: --launch none, --gpus 1, --set 'runtime.other=a b'"
    assert issue_lines([issue], OPTIONS)[-1] == fix
    help_of_run = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    assert [option for option in OPTIONS.values() if option not in help_of_run] == []
