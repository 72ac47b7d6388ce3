"""Processes of the PyTorch loader end with their trainer, however it ends, and when it is left."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer_data.factories import loaded, opener, write_arrays
from tests.trainer_data.test_dataloader import CONTEXTS, ORDER, PART
from tests.worker.eventually import eventually

TRAINER = """
import sys, time
from pathlib import Path
from typing import Any
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


class Hanging:
    """A disk that does not answer, once the first batch is there."""

    def __init__(self, path: Path) -> None:
        self._source = opener(path)()
        self.fields, self.places_rows = self._source.fields, self._source.places_rows
        self.num_samples, self.close = self._source.num_samples, self._source.close

        self._reads = 0

    def read(self, extents, out):
        self._reads += 1
        if self._reads > 1:
            time.sleep(120)
        self._source.read(extents, out)


class Locking(Hanging):
    """Reads while its process holds a lock of torch's, as it does for a moment between batches."""

    def read(self, extents, out):
        frame = sys._getframe()
        while frame.f_back is not None and "done_event" not in frame.f_locals:
            frame = frame.f_back
        with frame.f_locals["done_event"]._cond:
            self._source.read(extents, out)
            time.sleep(0.5)


@pytest.mark.timeout(60)
def test_an_iteration_that_is_left_waits_for_no_lock_of_a_killed_process(tmp_path):
    path = write_arrays(tmp_path / "numbers.h5")
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    batches = loaded(path, PART, ORDER, open_source=partial(Locking, path), **options)
    for _ in range(3):
        under_way = batches.iterate(0)
        next(under_way)
        time.sleep(0.1)  # it reads the next one
        under_way.close()
    assert batches.pids == []


@pytest.mark.timeout(60)
def test_processes_that_hang_in_a_read_hold_up_nobody(tmp_path):
    path = write_arrays(tmp_path / "numbers.h5")
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    batches = loaded(path, PART, ORDER, open_source=partial(Hanging, path), **options)
    under_way = batches.iterate(0)
    next(under_way)
    began = time.monotonic()
    under_way.close()
    assert time.monotonic() - began < 9  # torch alone would take ten for each
