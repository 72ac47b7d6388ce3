"""`stoker run` with a script that is not there: refused before anything is asked of a service."""

import re
import sys

import pytest
from typer.testing import CliRunner

from app.cli.failures import CommandFailed, issue_lines
from app.cli.main import app
from app.cli.run import OPTIONS, _in_copy
from app.cli.typed import find_program, require_script


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
        (("bash", "-eu", "jbos/nigth.sh"), "Did you mean jobs/night.sh?"),
        (("python", "nothing/like.py"), "There is no file nothing/like.py in {}."),
    ],
)
def test_a_file_that_is_not_there_is_asked_about(project, command, said):
    with pytest.raises(CommandFailed) as refused:
        require_script(project, list(command))
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
    require_script(project, list(command))


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_what_follows_the_command_is_its_own(cli, home, dashes):
    answer = cli("run", *dashes, "no-such-program", "--gpus", "2", "--steps", "100")
    assert answer.code == 5
    assert "'no-such-program' is not in PATH" in answer.err


def test_a_script_is_told_with_its_python(cli, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    answer = cli("run", "train.py")
    assert "Did you mean `stoker run -- python train.py`?" in answer.err


def test_where_python_has_another_name_that_is_told(cli, home, tmp_path, monkeypatch):
    (tmp_path / "python3").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "`python3` is there; or activate" in cli("run", "--", "python", "train.py").err


def test_a_file_that_is_not_executable_is_told(cli, home, project, monkeypatch):
    monkeypatch.chdir(project / "jobs")
    answer = cli("run", "--", "./night.sh", "--gpus", "2")
    assert answer.code == 5
    assert "not executable. `chmod +x ./night.sh`, or name what runs it" in answer.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["python train.py --lr 1"], "Leave out the quotes: stoker run -- python train.py --lr 1"),
        (
            ["python a.py | tee b"],
            "Only a shell reads it: stoker run -- bash -c 'python a.py | tee b'",
        ),
        (["LR=1", "python", "train.py"], "Set variables before it: LR=1 stoker run -- …"),
        (
            ["CUDA_VISIBLE_DEVICES=0", "python", "train.py"],
            "leave it out, and say how many by --gpus",
        ),
        (["STOKER_RUN_DIR=/x", "python", "a.py"], "Leave it out: a run gets STOKER_RUN_DIR from"),
        (["bash", "-c", "python", "train.py"], "stoker run -- bash -c 'python train.py'"),
    ],
)
def test_a_command_as_it_is_typed_in_a_shell_is_told_as_it_is_typed_here(cli, home, command, said):
    answer = cli("run", "--", *command)
    assert said in answer.err
    assert answer.code == 5


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
    described = {
        **issue, "loc": ["recipe", "metrics", "stdout"], "fix": [],
        "message": 'recipe.metrics.stdout = "a": name what it finds.',
        "why": "recipe.metrics.stdout: A regular expression.",
    }  # fmt: skip
    head, why = issue_lines([described], OPTIONS)
    assert head.endswith(' at --metrics-stdout: --metrics-stdout = "a": name what it finds.')
    assert why == "    --metrics-stdout: A regular expression."
    help_of_run = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).output
    assert [option for option in OPTIONS.values() if option not in help_of_run] == []
    assert "[OPTIONS] -- COMMAND…\n" in re.sub(r" +\n", "\n", help_of_run)
    of_script = CliRunner().invoke(app, ["run", "--lr", "3"], env={"COLUMNS": "200"}).output
    assert "stoker run -- python train.py --lr …" in of_script


@pytest.mark.parametrize(
    ("command", "advice"), [("./nope.sh", "Correct the path."), ("nope", "Give its path, or")]
)
def test_a_path_that_was_given_is_not_asked_for(project, monkeypatch, command, advice):
    monkeypatch.chdir(project)
    with pytest.raises(CommandFailed) as refused:
        find_program(command)
    assert advice in str(refused.value)
