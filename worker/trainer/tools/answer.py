"""What a module of the trainer that runs as a command says: one JSON document, or one sentence."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from worker.trainer.data.formats.hdf5_file import HDF5_ERRORS
from worker.trainer.errors import TrainerError


def answer(work: Callable[[], Mapping[str, Any]], failed: str) -> int:
    """Print what `work` finds; the exit code. `failed`: what did not happen, where only the file
    system or HDF5 say why.
    """
    try:
        found = work()
    except TrainerError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    except HDF5_ERRORS as error:
        sys.stderr.write(f"{failed}: {error}.\n")
        return 1
    sys.stdout.write(json.dumps(found) + "\n")
    return 0
