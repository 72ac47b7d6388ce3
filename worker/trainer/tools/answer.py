"""What a module of the trainer that runs as a command says: one JSON document, or one sentence."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker.trainer.data.formats.hdf5_file import HDF5_ERRORS
from worker.trainer.errors import DataError, TrainerError


def require_new(out: Path, *, force: bool) -> None:
    """DataError where a file is there already and may not be replaced. Asked once nothing is wrong
    with the input, so that all of it is told first.
    """
    if not force and out.exists():
        raise DataError(f"{out} exists already; --force replaces it.")


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
