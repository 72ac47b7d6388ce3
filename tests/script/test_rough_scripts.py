"""Scripts that are rough with the machine: the disk full, a gigabyte printed, a thousand forks."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.script.stage import Stage

pytestmark = pytest.mark.timeout(300)

FILLS = """
import os, time
os.makedirs("out")
print("began", flush=True)
with open(os.environ["STOKER_RUN_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(1, 1001):
        file.write('{"step": %d, "loss": 1.0}\\n' % step)
try:
    with open("out/ckpt-5.pt", "wb") as file:
        while True:
            file.write(bytes(2**16))
finally:
    time.sleep(PAUSE)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Stage]:
    """A stage on a disk of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    stage = Stage(place)
    yield stage
    stage.close()
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("pause", [0, 5])
def test_one_that_fills_the_disk_ends_and_says_so(small_disk: Stage, pause: int):
    small_disk.write(FILLS.replace("PAUSE", str(pause)))
    end = small_disk.run(checkpoints=["out/*.pt"], resume=["--resume", "{checkpoint}"])
    assert (end["reason"], end["result"]["exit_code"]) == ("disk_full", 1)
    assert "restart the run. The last line of its log: OSError: [Errno 28]" in end["message"]
    assert f" after {pause} s" in end["message"] or pause, "it is left to go on meanwhile"
    assert not list((small_disk.attempt() / "checkpoints").glob("step-*"))


def test_one_that_goes_on_with_a_full_disk_is_left_to_do_so(small_disk: Stage):
    catches = FILLS.replace("finally:", "except OSError:\n    os.remove('out/ckpt-5.pt')")
    small_disk.write(catches.replace("PAUSE", "3") + "\nprint('went on')\n")
    assert small_disk.run()["reason"] == "completed"
    assert "went on" in small_disk.log()
    assert small_disk.curve("train_loss")


@pytest.mark.minutes
@pytest.mark.parametrize("pattern", [None, "step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)"])
def test_one_that_prints_a_gigabyte_is_watched_all_the_same(stage: Stage, pattern: str | None):
    stage.write(
        "line = b'x' * 99 + b'\\n'\n"
        "import os\n"
        "for _ in range(1024):\n"
        "    os.write(1, line * 10486)\n"
        "print('step 7 loss 0.5')\n"
    )
    end = stage.run(metrics={"file": None, "stdout": pattern})
    assert (end["reason"], end["result"]["exit_code"]) == ("completed", 0)
    assert stage.curve("train_loss") == ({} if pattern is None else {7: 0.5})


@pytest.mark.minutes
def test_a_thousand_forks_are_all_ended(stage: Stage):
    stage.write(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(1000):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(600)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    runner = stage.start(grace_seconds=2.0)
    stage.until_log_has("ready")
    below = psutil.Process(runner.pid).children(recursive=True)
    assert len(below) == 1001
    stage.stop(runner)
    assert stage.end()["reason"] == "killed"
    assert not any(process.is_running() for process in below)
