"""What the processes of a training take before they hold any data, each in a process of its own.

That has no main module, for a loader's processes import what the one of their parent does, and that
of a trainer is small.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from benchmarks.figures import ROOT
from benchmarks.memory.memory_cases import SMALL, MemoryCase, by_torch, dataset_of, spec_of
from benchmarks.steps import unstopped
from worker.trainer.data.dataset import open_data

TRAINER = """
import psutil
from worker.trainer.run import execute
from worker.trainer.failure import explain
print(psutil.Process().memory_info().rss)
"""
COMPILER = """
import psutil, torch
from worker.trainer.speed.compiler import compiled, quiet
from worker.trainer.run import execute
before = psutil.Process().memory_info().rss
step = compiled(lambda x: x.relu().square().sum(), "default")
with quiet():
    step(torch.ones(8, 4, requires_grad=True)).backward()
print(psutil.Process().memory_info().rss - before)
"""
LOADER = """
import json, sys
from benchmarks.memory.process_memory import measured_here
print(json.dumps(measured_here(sys.argv[1])))
"""


class LoaderProcesses(NamedTuple):
    """Bytes that each of them has for itself, and the fork server, while there is one."""

    own: list[int]
    fork_server: int | None


def imports_of_a_trainer() -> int:
    """Bytes of a trainer that has imported all that it needs."""
    return int(_output(TRAINER))


def compiler() -> int:
    """Bytes more once a first step has been compiled, with nothing in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        return int(_output(COMPILER, TORCHINDUCTOR_CACHE_DIR=folder))


def loader_processes(context: str) -> LoaderProcesses:
    """Of two that have read a batch."""
    return LoaderProcesses(*json.loads(_output(LOADER, context)))


def _output(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def measured_here(context: str) -> LoaderProcesses:
    """The same, as children of this process."""
    settings = by_torch(num_workers=2, multiprocessing_context=context)
    case = MemoryCase("processes", SMALL, {}, 8, settings)
    with tempfile.TemporaryDirectory() as folder, unstopped() as preparing:
        dataset = dataset_of(case.data.write(Path(folder)))
        found = open_data(spec_of(case), {SMALL.name: dataset}, torch.device("cpu"), preparing)
        under_way = found.train.iterate(0)
        for _ in range(4):
            next(under_way)
        own = [psutil.Process(pid).memory_full_info().uss for pid in found.pids]
        found.close()
    servers = [
        child.memory_full_info().uss
        for child in psutil.Process().children()
        if "forkserver" in " ".join(child.cmdline())
    ]
    return LoaderProcesses(own, servers[0] if servers else None)
