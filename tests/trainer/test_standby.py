"""The trainer that waits: what it has done before its attempt comes, and what it is then."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.lab import Lab, read_events
from tests.worker.eventually import eventually


@pytest.mark.slow
def test_it_has_imported_when_it_is_ready_and_trains_as_any_other(lab: Lab) -> None:
    endless = {"training": {"epochs": 100_000}, "early_stopping": None}
    folder = lab.prepare(patch=endless)
    heard, told = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "worker.trainer", "--standby", str(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(told,),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            os.close(told)
            follow(process, folder, heard)
        finally:
            process.kill()  # if it has not ended, and a failure above is to be told
    assert read_events(folder)[-1]["reason"] == "interrupted"


def follow(process: subprocess.Popen[bytes], folder: Path, heard: int) -> None:
    """From the start to a stop."""
    assert process.stdin is not None
    own = Path(f"/proc/{process.pid}")
    with open(heard, "rb") as pipe:
        assert pipe.read() == b"ready\n"
    assert "libtorch_cpu" in (own / "maps").read_text()
    assert "hdf5" in (own / "maps").read_text()
    order = {"attempt_dir": str(folder), "environment": {"CUDA_VISIBLE_DEVICES": ""}}
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.close()
    eventually(lambda: steps(folder), "it trains")
    assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
    if (own / "autogroup").exists():
        assert (own / "autogroup").read_text().endswith("nice 0\n")
    assert (own / "cwd").resolve() == folder.resolve()
    opened = [(own / "fd" / str(number)).resolve() for number in (0, 1, 2)]
    log = (folder / "trainer.log").resolve()
    assert opened == [Path(os.devnull), log, log]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def steps(folder: Path) -> bool:
    events = folder / "events.jsonl"
    return events.exists() and '"metrics"' in events.read_text()
