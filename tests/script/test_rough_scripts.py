"""Scripts that are rough with the machine: the disk full, a gigabyte printed, a thousand forks."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.script.disks import small_disk
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
def cramped(tmp_path: Path) -> Iterator[Stage]:
    """A stage on a disk of 8 MiB."""
    with small_disk(tmp_path / "disk", 8) as place:
        stage = Stage(place)
        yield stage
        stage.close()


@pytest.mark.parametrize("pause", [0, 5])
def test_one_that_fills_the_disk_ends_and_says_so(cramped: Stage, pause: int):
    cramped.write(FILLS.replace("PAUSE", str(pause)))
    end = cramped.run(checkpoints=["out/*.pt"], resume=["--resume", "{checkpoint}"])
    assert (end["reason"], end["result"]["exit_code"]) == ("disk_full", 1)
    assert "restart the run. The last line of its log: OSError: [Errno 28]" in end["message"]
    assert f" after {pause} s" in end["message"] or pause, "it is left to go on meanwhile"
    assert not list((cramped.attempt() / "checkpoints").glob("step-*"))


def test_one_that_goes_on_with_a_full_disk_is_left_to_do_so(cramped: Stage):
    catches = FILLS.replace("finally:", "except OSError:\n    os.remove('out/ckpt-5.pt')")
    cramped.write(catches.replace("PAUSE", "3") + "\nprint('went on')\n")
    assert cramped.run()["reason"] == "completed"
    assert "went on" in cramped.log()
    assert cramped.curve("train_loss")


def test_calls_of_stoker_do_not_end_one_on_a_full_disk(cramped: Stage):
    calls = (
        "except OSError:\n"
        "    import stoker\n"
        "    run = stoker.init(config={'lr': 0.1})\n"
        "    run.log({'loss': 0.5}, step=1001)\n"
        "    run.finish()\n"
        "    os.remove('out/ckpt-5.pt')\n"
    )
    cramped.write(FILLS.replace("finally:\n    time.sleep(PAUSE)", calls) + "print('went on')")
    assert cramped.run()["reason"] == "completed"
    assert "went on" in cramped.log()


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
