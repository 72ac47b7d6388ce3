"""Damaged files: a limited child either reports or dies; the caller always gets on."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.trainer_data.factories import write_arrays

LIMITED = """ulimit -v 4000000; ulimit -t 3; ulimit -c 0
exec "$0" -m worker.trainer.tools.inspect "$1" --json"""


@pytest.fixture(scope="module", params=[12, pytest.param(100, marks=pytest.mark.minutes)])
def outcomes(tmp_path_factory, request):
    """(mutation, exit status, stdout, stderr) of inspecting files with a few bytes changed."""
    folder = tmp_path_factory.mktemp("mutations")
    plain = write_arrays(folder / "plain.h5", samples=3).read_bytes()
    packed = write_arrays(folder / "packed.h5", samples=3, chunks=True, compression="gzip")
    random = np.random.default_rng(2)

    def damage(number):
        data = bytearray(packed.read_bytes() if number % 2 else plain)
        for place in random.integers(8, len(data), size=int(random.integers(1, 5))):
            data[place] = random.integers(256)
        path = folder / f"{number}.h5"
        path.write_bytes(data)
        return path

    def look(path):
        command = ["sh", "-c", LIMITED, sys.executable, str(path)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment
        )
        return path.name, done.returncode, done.stdout, done.stderr

    paths = [damage(number) for number in range(request.param)]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(look, paths))


@pytest.mark.slow
def test_no_mutation_gives_a_traceback(outcomes):
    assert [(name, stderr) for name, _, _, stderr in outcomes if "Traceback" in stderr] == []


@pytest.mark.slow
def test_every_child_reports_or_is_ended_by_a_signal(outcomes):
    for name, status, stdout, _ in outcomes:
        if status == 0:
            report = json.loads(stdout)
            assert report["problems"] or report["fingerprint"], name
        else:
            assert status < 0, name


@pytest.mark.slow
def test_damage_is_mostly_told_in_a_sentence(outcomes):
    """The library crashes or loops on a few files in a thousand; the rest must be told."""
    reported = [json.loads(stdout) for _, status, stdout, _ in outcomes if status == 0]
    assert len(reported) > 0.9 * len(outcomes)
    assert sum(1 for report in reported if report["problems"]) >= len(outcomes) // 10
