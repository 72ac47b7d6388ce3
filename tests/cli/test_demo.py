"""`make demo` leaves nothing running when it is interrupted; the newcomer's test runs it whole."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.service import Service, eventually

DEMO = Path(__file__).parents[2] / "benchmarks" / "demo.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


# SIGTERM is taken as SIGHUP is.
@pytest.mark.parametrize(
    "ending", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.minutes)]
)
def test_an_interrupted_demo_ends_what_it_started(tmp_path, ending):
    said = tmp_path / "said.txt"
    with said.open("wb") as output:
        demo = subprocess.Popen(
            [sys.executable, DEMO],
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    eventually(lambda: "ready at" in said.read_text(), "the service is ready")
    [home] = tmp_path.glob("stoker-demo-*")
    demo.send_signal(ending)
    assert demo.wait(120) == 1
    assert Service(home).left_running() == []
    assert not home.exists()
