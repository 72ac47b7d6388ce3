"""The trainer, in a process that may take only so much memory above its imports.

The label `memory_mib` of the run's spec says how much; a run without it has no limit. As under
`ulimit -d`, what goes beyond is refused. Called as the trainer is: with the attempt's folder.
"""

import json
import os
import resource
import sys
from pathlib import Path

import psutil

import worker.trainer.failure  # what a trainer imports is there before the limit is set
import worker.trainer.run  # noqa: F401 - the same
from worker.trainer.__main__ import main


def limit_memory(folder: Path) -> None:
    labels = json.loads((folder / "spec.json").read_text())["spec"]["labels"]
    if "memory_mib" in labels:
        most = psutil.Process().memory_info().data + int(float(labels["memory_mib"]) * 2**20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    limit_memory(Path(sys.argv[1]))
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)
