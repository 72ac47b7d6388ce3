"""Whose memory settings what a benchmark starts has: a trainer's, its caller's, or none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import heap
from benchmarks.loading import neighbours
from benchmarks.loading.files import write
from worker.launch.local import OWNERS_MEMORY

ROOT = Path(__file__).parents[2]
BEGUN = """
import json, os, sys
from benchmarks import heap
print(os.getpid(), flush=True)
heap.begin_as_a_trainer()
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in heap.OWNERS_MEMORY}]))
"""


def begun(folder, **environment):
    """The process ids that a program had, its arguments, and the settings in force at its end."""
    script = folder / "program.py"
    script.write_text(BEGUN)
    done = subprocess.run(
        [sys.executable, "-P", script, "--json", "figures.json"],
        env={**heap.plain_environment(), "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *pids, last = done.stdout.splitlines()
    return pids, *json.loads(last)


def test_a_benchmark_begins_anew_as_a_trainer_does(tmp_path):
    """The same process, once, with the same arguments."""
    pids, arguments, settings = begun(tmp_path)
    assert len(pids) == 2
    assert len(set(pids)) == 1
    assert arguments == ["--json", "figures.json"]
    assert settings == {name: heap.OF_TRAINERS.get(name) for name in OWNERS_MEMORY}


@pytest.mark.parametrize("said", ["", "glibc.malloc.hugetlb=0"])
def test_its_callers_settings_are_left_alone(tmp_path, said):
    pids, _, settings = begun(tmp_path, GLIBC_TUNABLES=said)
    assert len(pids) == 1
    assert settings == {"GLIBC_TUNABLES": said, "THP_MEM_ALLOC_ENABLE": None}


def test_services_have_what_the_caller_had_and_scripts_nothing(monkeypatch):
    for name in OWNERS_MEMORY:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    for name, value in heap.OF_TRAINERS.items():
        monkeypatch.setenv(name, value)
    assert heap.settings_in_force() == heap.OF_TRAINERS
    assert heap.callers_environment() == heap.plain_environment() == before
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    assert heap.callers_environment() == {**before, "THP_MEM_ALLOC_ENABLE": "0"}
    assert heap.plain_environment() == before


def test_a_plain_script_has_none(tmp_path, monkeypatch):
    for name in OWNERS_MEMORY:
        monkeypatch.setenv(name, "1")
    arm, *_ = neighbours.plain_script(write(tmp_path, "contiguous", 3, 2), shuffled=False)
    told = Path(f"/proc/{arm.process._process.pid}/environ").read_bytes().split(b"\0")
    arm.close()
    assert b"PATH" in {variable.partition(b"=")[0] for variable in told}
    assert not [variable for variable in told if variable.startswith((b"GLIBC_", b"THP_"))]
