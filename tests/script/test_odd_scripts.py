"""Scripts that do what nobody expects with files, disk and output: all goes on as it should."""

import errno
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.script.disks import small_disk
from tests.script.stage import ROOT, Stage, spec_json
from worker.reporting import last_line
from worker.script.ending import not_run
from worker.script.sources import Output
from worker.start.scripts import COMMAND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MAKES_FILES = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    for number in range(10_000):
        open(f"file-{number}", "w").close()
except OSError:
    print("ready", flush=True)
while not os.path.exists(os.environ["STOKER_STOP_FILE"]):
    time.sleep(0.05)
print("saw it", flush=True)
"""


def test_one_on_a_disk_that_takes_no_more_files_is_asked_to_stop(tmp_path: Path):
    with small_disk(tmp_path / "disk", 8, files=200) as place:
        stage = Stage(place)
        stage.write(MAKES_FILES)
        runner = stage.start()
        stage.until_log_has("ready")
        end = stage.stop(runner)
        assert (end["reason"], end["result"]["exit_code"]) == ("interrupted", 0)
        assert "saw it" in stage.log()


MAKES_PIPES = """
import os, time
os.makedirs("out")
for pipe in ("own.jsonl", "metrics.csv", "out/ckpt-7.pt"):
    os.mkfifo(pipe)
print("ready", flush=True)
time.sleep(600)
"""


def test_pipes_where_files_are_looked_for_hold_up_nothing(stage: Stage):
    """To open one waits for whoever writes into it."""
    stage.write(MAKES_PIPES)
    metrics = {"file": "own.jsonl", "stdout": None}
    runner = stage.start(metrics=metrics, checkpoints=["out/*.pt"])
    stage.until_log_has("ready")
    stage.until(lambda: stage.events("progress"), "it is looked at")
    assert stage.stop(runner)["reason"] == "interrupted"


LOSES_ITS_LOG = """
import os, time
os.remove(os.environ["STOKER_RUN_DIR"] + "/trainer.log")
time.sleep(2.5)
"""


def test_one_that_removes_its_log_runs_to_its_end(stage: Stage):
    stage.write(LOSES_ITS_LOG)
    assert stage.run()["reason"] == "completed"


@pytest.mark.parametrize(("end", "between"), [("", "\n"), ("\\n", ""), ("\\r", "\n")])
def test_the_last_line_ends_before_that_of_stoker(stage: Stage, end: str, between: str):
    stage.write(f"print('100%|####|', end='{end}')")
    stage.run()
    said = end.encode().decode("unicode_escape")
    assert f"100%|####|{said}{between}stoker: The script ended" in stage.log_bytes().decode()


def test_a_log_without_output_begins_with_the_line_of_stoker(stage: Stage):
    stage.write("pass")
    stage.run()
    assert stage.log().startswith("stoker: ")


SAVES = """
import os, time, zipfile
os.makedirs("out")
with zipfile.ZipFile("out/ckpt-NAME.pt", "w") as archive:
    archive.writestr("weights", os.urandom(SIZE))
def events():
    return open(os.environ["STOKER_RUN_DIR"] + "/events.jsonl").read()
until = time.monotonic() + 30
while "UNTIL" not in events() and time.monotonic() < until:
    time.sleep(0.05)
print("seen:", "UNTIL" in events())
"""


def saves(name: int, size: int, until: str) -> str:
    code = SAVES.replace("NAME", str(name)).replace("SIZE", str(size))
    return code.replace("UNTIL", until)


@pytest.mark.parametrize(
    ("left", "attempt", "reason"),
    [(None, 1, "spec_error"), ('{"PATH": "/b', 1, "spec_error"), (None, 2, "crashed")],
)
def test_an_environment_that_cannot_be_read_is_told_as_that(
    stage: Stage, left: str | None, attempt: int, reason: str
):
    kept = stage.cwd / "kept.json"
    if left is not None:
        kept.write_text(left)
    folder = stage.attempt(attempt)
    folder.mkdir(parents=True)
    more = {"run_dir": str(stage.run_folder), "environment_file": str(kept), "attempt": attempt}
    (folder / "spec.json").write_text(json.dumps({**spec_json(stage.cwd), **more}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*COMMAND, str(folder)], env=environment, check=True)
    end = stage.end(attempt)
    assert end["reason"] == reason
    assert "environment that was kept with the command cannot be read" in end["message"]
    assert f"Put {kept} back" in end["message"]


def test_a_number_too_large_for_a_step_is_none(stage: Stage):
    """Such as a time in nanoseconds: the save is kept all the same."""
    stage.write(saves(1_764_093_600_123_456_789, 10, "by_stoker"))
    assert stage.run(checkpoints=["out/*.pt"])["reason"] == "completed"
    (saved,) = stage.events("checkpoint")
    assert (saved["action"], saved["step"]) == ("saved", 1)


def test_a_save_that_finds_no_room_is_told_of_at_once(tmp_path: Path):
    with small_disk(tmp_path / "disk", 8) as place:
        stage = Stage(place)
        stage.write(saves(5, 5 * 2**20, "checkpoint_not_kept"))
        stage.run(checkpoints=["out/*.pt"])
        assert "seen: True" in stage.log(), "while it runs"
        first, *_ = (one for one in stage.events("warning") if "not_kept" in one["code"])
        assert "the disk of the run is full" in first["message"]


@pytest.mark.parametrize("pages", [5, 18], ids=["for events alone", "and for what is held free"])
def test_a_start_without_room_is_said_to_be_that(tmp_path: Path, pages: int):
    """Two of the pages are for spec.json and the environment."""
    with small_disk(tmp_path / "disk", 8) as place:
        stage = Stage(place)
        stage.write("print('here')")
        filling = place / "filling"
        with filling.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(filling, filling.stat().st_size - pages * 4096)
        end = stage.run()
        assert end["reason"] == "disk_full"
        assert "the disk of the run is full" in end["message"]
        assert "here" not in stage.log()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no room"), OSError(errno.EIO, "broken")])
def test_an_error_that_may_come_late_does_not_say_that_nothing_ran(error: OSError):
    assert not_run(error).message.startswith("The script could not be run, or not any further")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (b"one\ntwo\n\n", "two"),
        (b" 10%|#  |\r 20%|## |\r", "20%|## |"),
        (b"\x1b[1;31mRuntimeError:\x1b[0m no\tway\x07\n", "RuntimeError: no way"),
        (b"\x1b]0;title\x07done\x1b[K", "done"),
        (b"\n \r\n", ""),
    ],
)
def test_the_last_line_is_what_a_terminal_shows(log: bytes, line: str):
    assert last_line(log) == line


def test_of_a_progress_bar_the_last_state_counts(tmp_path: Path):
    log = tmp_path / "trainer.log"
    output = Output(log, "loss (?P<loss>[0-9.]+)")
    bar = "".join(f"\r{part}%|{'#' * part:100}| loss {1 / part}" for part in range(1, 101))
    log.write_text(f"loss 3\r\n{bar}\n{bar}\r saving\n")
    assert [point.values["loss"] for point in output.read()] == [3.0, 0.01, 0.01]


@pytest.mark.parametrize(
    ("pattern", "points"),
    [
        ("step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)", [(2998, 2.0), (2999, 1.0)]),
        ("loss (?P<loss>[0-9.]+)", [(None, 1.0)]),
    ],
)
def test_a_long_progress_bar_tells_before_its_line_ends(tmp_path: Path, pattern: str, points):
    """That of a whole training is one line; without a step nobody could count its states."""
    log = tmp_path / "trainer.log"
    output = Output(log, pattern)
    states = [f"\r{'#' * 100} step {step} loss {3000 - step}" for step in range(3000)]
    log.write_text("".join(states))
    told = [*output.read()]
    with log.open("a") as file:
        file.write("\r\n")
    told += output.read()
    assert [(point.step, point.values["loss"]) for point in told] == points
