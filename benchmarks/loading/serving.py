"""What a process of arms does: an epoch for each line that it reads.

`benchmarks.loading.neighbours` starts it, with a `DataFile` as JSON.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.loading.arms import CORES, Arm
from benchmarks.loading.files import DataFile


def serve(arms_of: Callable[[DataFile, bool], Iterable[Arm]]) -> None:
    """`arms_of(file, shuffled)`; until the end of standard input."""
    torch.set_num_threads(CORES)
    document = json.loads(sys.argv[1])
    shuffled = bool(document.pop("shuffled"))
    file = DataFile(**{**document, "path": Path(document["path"])})
    arms = {arm.name: arm for arm in arms_of(file, shuffled)}
    _say(list(arms))
    for line in sys.stdin:
        name, number = json.loads(line)
        _say(arms[name].run(file, number))


def _say(document: Any) -> None:
    print(json.dumps(document), flush=True)
