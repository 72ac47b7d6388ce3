"""`stoker up` and `down` with real processes, and the commands that need a worker."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from app.cli import results
from stoker import Client
from tests.cli.conftest import environment_of, stoker, wait_for_training
from tests.e2e.service import Service, eventually, write_waves


class Foreground:
    """`stoker up` in this terminal, with what it says in a file."""

    def __init__(self, home: Path, *options: str, **settings: str) -> None:
        home.parent.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.said = home.parent / "up.txt"
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "up", *options],
                env=environment_of(home) | settings,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.said.read_text()

    def wait_until_ready(self) -> None:
        eventually(lambda: "ready: http" in self.text(), f"up is ready:\n{self.text()}")

    def children(self, words: str) -> list[int]:
        """The processes of this home whose command line ends so."""
        return [
            process.pid
            for process in Service(self.home).left_running()
            if " ".join(process.cmdline()).endswith(words)
        ]


@pytest.fixture
def foreground(tmp_path):
    running: list[Foreground] = []

    def start(*options: str, **settings: str) -> Foreground:
        running.append(Foreground(tmp_path / "home", *options, **settings))
        return running[-1]

    yield start
    for up in running:
        up.process.kill()
        up.process.wait()
        _await_end(up.home)


def test_ctrl_c_drains_everything(foreground):
    up = foreground()
    up.wait_until_ready()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(60) == 0
    text = up.text()
    assert text.index("stopping the worker") < text.index("stopping the api")
    assert Service(up.home).left_running() == []


def test_lines_say_who_speaks_and_that_no_metrics_are_exported(foreground):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        up = foreground(STOKER_EXPORTER_PORT=port)
        up.wait_until_ready()
    speakers = {line.split()[0] for line in up.text().splitlines() if line.strip()}
    assert speakers == {"api", "worker", "stoker"}
    (told,) = (line for line in up.text().splitlines() if " exports no metrics: " in line)
    assert f":{port} cannot be had (Address already in use)" in told
    assert "STOKER_EXPORTER_PORT" in told


@pytest.mark.minutes
def test_a_child_that_dies_is_started_again(foreground):
    up = foreground()
    up.wait_until_ready()
    [first] = up.children("app.cli api")
    with Client(_url(up.home)) as client:
        os.kill(first, signal.SIGKILL)
        eventually(lambda: "starting it again" in up.text(), "it is started again")
        eventually(client.ready, "the service is ready again, at the same address")
    assert up.children("app.cli api") != [first]


def test_killing_up_ends_its_children(foreground):
    up = foreground()
    up.wait_until_ready()
    up.process.kill()
    up.process.wait()
    _await_end(up.home)


def test_a_second_up_and_a_taken_port_are_refused(up_home, tmp_path):
    second = stoker(up_home, "up")
    assert second.code == 5
    assert "already runs" in second.err
    assert "already runs" in stoker(up_home, "up", "--detach").err
    told = json.loads(stoker(up_home, "up", "--detach", "--json").err)
    assert (told["code"], told["exit_code"]) == ("already_running", 5)
    assert "already runs" in told["detail"]
    port = _url(up_home).rsplit(":", 1)[1]
    for options in (("--detach",), ()):
        other = stoker(tmp_path / "other", "up", "--port", port, *options)
        assert (other.code, other.out) == (1, "")
        (line,) = other.err.splitlines()
        assert f"127.0.0.1:{port} cannot be bound: it is in use by process" in line
        assert "(the API of another Stoker). Nothing was started. `stoker up --port 0`" in line
    assert not (tmp_path / "other" / "logs").exists(), "nothing was started"


@pytest.mark.parametrize("command", [("up",), ("up", "--detach"), ("api",)])
def test_what_is_no_host_name_is_refused(tmp_path, command):
    refused = stoker(tmp_path / "home", *command, "--host", "a..b")
    assert refused.code == 5
    assert refused.err.startswith("error: STOKER_HOST: 'a..b' is no address and no host name")
    assert not (tmp_path / "home").exists()


def test_a_start_that_fails_is_one_document_with_the_end_of_its_log(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "stoker.db").write_bytes(b"not a database" * 100)
    told = json.loads(stoker(home, "up", "--detach", "--json").err)
    assert (told["code"], told["exit_code"]) == ("failed", 1)
    assert told["log"]
    assert Service(home).left_running() == []


@pytest.mark.minutes
def test_folders_of_the_same_names_where_one_stands_are_not_taken_for_ours(tmp_path):
    home, project = tmp_path / "home", tmp_path / "project"
    for package in ("app", "worker"):
        (project / package).mkdir(parents=True)
        (project / package / "__init__.py").touch()
    program = Path(sys.executable).with_name("stoker")

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *words],
            cwd=project,
            env=environment_of(home),
            capture_output=True,
            text=True,
            check=False,
        )

    started = call("up", "--detach")
    ended = call("down")
    assert started.returncode == 0, started.stderr
    assert ended.returncode == 0, ended.stderr
    assert home.stat().st_mode & 0o077 == 0  # made by `up --detach`


SAVES = """
import pathlib, signal, sys, time, zipfile
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
if sys.argv[1:] == ["saves"]:
    with zipfile.ZipFile("ckpt-1.pt", "w") as archive:
        archive.writestr("step", "1")
pathlib.Path("started").touch()
time.sleep(600)
"""


@pytest.mark.minutes
@pytest.mark.parametrize("saves", [True, False])
def test_down_says_which_runs_go_on_and_which_begin_anew(tmp_path, saves):
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SAVES)
    how = ("--checkpoints", "ckpt-*.pt", "--resume", "--resume {checkpoint}")
    command = (sys.executable, "train.py", *(("saves",) if saves else ()))
    started = stoker(home, "run", *how, "--", *command, cwd=project)
    assert started.code == 0, started.err
    try:
        eventually((project / "started").exists, "it runs")
    finally:
        ended = stoker(home, "down")
    assert ended.code == 0, ended.err
    said = "Run 1 waits in the queue" if saves else "Run 1 begins anew then: it has saved nothing"
    assert said in ended.out


@pytest.mark.minutes
def test_down_ends_the_service_while_its_database_is_away(tmp_path):
    home = tmp_path / "home"
    assert stoker(home, "up", "--detach").code == 0
    away = {"STOKER_DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:9/none"}
    command = [sys.executable, "-m", "app.cli", "down"]
    environment = environment_of(home) | away
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "Stoker has stopped.\n"), ended.stderr
    assert "not running" in stoker(home, "down").out


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_a_home_that_cannot_be_made_is_refused_with_another_way(tmp_path, options):
    (tmp_path / "file").touch()
    answer = stoker(tmp_path / "file" / "home", "up", *options)
    assert answer.code == 5
    assert "file/home cannot be used as the service's home (Not a directory)" in answer.err
    assert "stoker up --home FOLDER" in answer.err


def test_without_the_worker_extra_it_is_a_sentence(cli, home, monkeypatch):
    monkeypatch.setattr("app.cli.host.service.WORKER_PACKAGES", ("torch", "no_such_package"))
    for command in ("up", "worker"):
        answer = cli(command)
        assert answer.code == 5
        assert "pip install 'stoker[worker]'" in answer.err
        assert "no_such_package" in answer.err


def test_down_where_nothing_runs_is_well(cli, home):
    answer = cli("down")
    assert answer.code == 0
    assert "not running" in answer.out


def test_a_run_from_submission_to_its_end(cli, up, spec_file):
    answer = cli("submit", str(spec_file), "--watch")
    assert answer.code == 0
    assert "succeeded" in answer.out
    assert "epoch" in answer.out
    assert "best" in answer.out


def test_watch_as_json_ends_with_the_run(cli, up, finished_run):
    answer = cli("watch", str(finished_run["id"]), "--json")
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert lines[-1]["kind"] == "run"
    assert lines[-1]["data"]["state"] == "succeeded"
    assert {"state", "epoch", "checkpoint"} <= {line["kind"] for line in lines}


def test_logs_metrics_and_checkpoints(cli, up, finished_run, monkeypatch):
    run_id = str(finished_run["id"])
    assert cli("logs", run_id).out
    assert cli("logs", run_id, "-f").out == cli("logs", run_id, "--attempt", "1").out
    for following in ((), ("-f",)):
        told = cli("logs", run_id, "--json", *following).out
        pieces = [json.loads(line) for line in told.splitlines()]
        assert "".join(piece["text"] for piece in pieces) == cli("logs", run_id).out
        assert {piece["attempt"] for piece in pieces} == {1}
    told = cli("metrics", run_id)
    assert "val_mae" in told.out
    assert not told.err
    monkeypatch.setattr(results, "SOME_MAY_BE_LEFT_OUT", 1)
    assert "about one point a second" in cli("metrics", run_id).err
    assert list(cli("metrics", run_id, "--name", "val_mae", "--json").document["series"]) == [
        "val_mae"
    ]
    assert cli("metrics", run_id, "--csv").out.startswith("name,")
    both = cli("metrics", run_id, "--csv", "--json")
    assert (both.code, both.out) == (2, "")
    assert "give one of the two" in both.err
    for options in ((), ("--csv",), ("--json",)):
        unknown = cli("metrics", run_id, "--name", "nope", *options)
        assert (unknown.code, unknown.out) == (5, "")
        assert "no metric nope; there are " in unknown.err
        assert "val_mae" in unknown.err
    assert "latest" in cli("checkpoints", run_id).out
    shown = cli("show", run_id).out
    assert shown.count("val_mae") >= 1
    assert re.search(
        r"  memory +(\S+ MiB planned, )?\S+ MiB measured at the peak, on top of the trainer's "
        r"libraries\n",
        shown,
    )


def everything_on(terminal: int) -> str:
    """What was written to a terminal that nobody writes to any more."""
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as screen, contextlib.suppress(OSError):
        while piece := screen.read(1 << 16):  # ends with an error: the other side is closed
            shown += piece
    return shown.decode()


def test_metrics_fit_into_a_narrow_terminal(up, finished_run):
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    subprocess.run(
        [sys.executable, "-m", "app.cli", "metrics", str(finished_run["id"])],
        env={**environment_of(up), "TERM": "xterm"},
        stdout=theirs,
        check=True,
    )
    os.close(theirs)
    shown = everything_on(terminal)
    assert "iterations_per_second" in shown
    assert "…" not in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(len(line.rstrip("\r")) for line in plain.split("\n")) <= 80


def test_download(cli, up, finished_run, tmp_path):
    run_id = str(finished_run["id"])
    folder = tmp_path / "best"
    answer = cli("download", run_id, "--best", "--output", str(folder), "--json")
    assert {Path(file).name for file in answer.document["files"]} >= {
        "manifest.json",
        "model.safetensors",
    }
    assert cli("download", run_id, "--output", str(folder)).code == 5
    newest = cli("checkpoints", run_id, "--json").document["data"][0]["id"]
    other = cli(
        "download", run_id, "--checkpoint", str(newest), "--output", str(tmp_path / "other")
    )
    assert other.code == 0
    assert cli("download", run_id, "--best", "--checkpoint", str(newest)).code == 2


def test_a_failed_run_ends_watch_with_one_and_a_sentence(cli, up, spec_file):
    data = write_waves(up / "data" / "doomed.h5", samples=100)
    assert cli("data", "register", "doomed", "doomed.h5").code == 0
    written = data.stat()
    data.write_bytes(bytes(written.st_size))  # as long and as old as before, and no HDF5 file
    os.utime(data, ns=(written.st_atime_ns, written.st_mtime_ns))
    doomed = ("--set", "data.dataset=doomed", "--set", "training.batch_size=16")
    answer = cli("submit", str(spec_file), *doomed, "--watch")
    assert answer.code == 1
    assert "doomed.h5 cannot be opened as HDF5" in answer.out
    assert "Traceback" not in answer.out + answer.err


@pytest.mark.minutes
def test_stop_pause_resume_restart_while_it_trains(cli, up, long_spec_file):
    run_id = cli("submit", str(long_spec_file), "--json").document["id"]
    wait_for_training(run_id)
    assert cli("pause", str(run_id), "--wait", "60").out == f"Run {run_id} is paused.\n"
    assert cli("watch", str(run_id)).code == 4
    cli("resume", str(run_id))
    wait_for_training(run_id)
    child = cli("restart", str(run_id))
    assert "as saved (latest) once its parent has stopped" in child.out
    assert cli("watch", str(run_id)).code == 3
    child_id = cli("show", str(run_id), "--json").document["child_ids"][0]
    wait_for_training(child_id)
    assert cli("kill", str(child_id), "--wait", "60").out == f"Run {child_id} has stopped.\n"


def test_workers_and_their_slots(cli, up):
    answer = cli("workers")
    assert "alive" in answer.out
    assert "free" in answer.out or "run " in answer.out


def _await_end(home: Path) -> None:
    """The kernel tells the children that their parent has died, and they end by themselves."""
    eventually(lambda: not Service(home).left_running(), "all children end")


def _url(home: Path) -> str:
    return str(json.loads((home / "api.json").read_text())["url"])
