"""Processes of the PyTorch loader end with their trainer, however it ends."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.trainer_data.test_dataloader import CONTEXTS
from tests.worker.eventually import eventually

TRAINER = """
import sys, time
from pathlib import Path
from typing import Any
from tests.trainer_data.factories import loaded, write_arrays
from worker.trainer.data.order import Order
from worker.trainer.data.split import Part

if __name__ == "__main__":
    batches = loaded(
        write_arrays(Path(sys.argv[1])), Part("numbers", range(100)), Order(100, 0, "full"),
        num_workers=2, multiprocessing_context=sys.argv[2],
    )
    for batch in batches.iterate(0):
        print(*batches.pids, flush=True)
        time.sleep(3600)
"""


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_processes_end_with_a_trainer_that_is_killed(tmp_path, context):
    """Also those of a fork server, which is their parent and does not end while they live."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    with subprocess.Popen(
        [sys.executable, script, tmp_path / "numbers.h5", context],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as trainer:
        assert trainer.stdout is not None
        loaders = [int(word) for word in trainer.stdout.readline().split()]
        everyone = [trainer.pid, *loaders]
        everyone += [child.pid for child in psutil.Process(trainer.pid).children()]
        trainer.kill()
    assert len(loaders) == 2
    eventually(lambda: not any(map(psutil.pid_exists, everyone)), "all are gone")
