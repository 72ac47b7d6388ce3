"""What a module of the trainer that runs as a command says: one JSON document, or one sentence."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker.trainer.data.formats.hdf5_file import HDF5_ERRORS
from worker.trainer.errors import DataError, TrainerError


def require_new(out: Path, *, force: bool) -> None:
    """DataError where a file is there already and may not be replaced. Asked before the input is
    read, which takes a while, but after what is wrong with its columns is known; and again right
    before the file would be replaced.
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


def sample_command(
    parser: argparse.ArgumentParser,
    build: Callable[[Path], Mapping[str, Any]],
    arguments: list[str] | None,
) -> int:
    """Runs a command that writes a sample to `path`; returns its exit code."""
    options = parser.parse_args(arguments)
    return answer(lambda: build(options.path), f"{options.path} cannot be written")


def converting_command(
    name: str,
    description: str,
    convert: Callable[..., Mapping[str, Any]],
    arguments: list[str] | None,
    *texts: str,
) -> int:
    """A command that writes one file anew as another. `convert`: of both paths, `force`, and the
    options that `texts` names, each a text or None.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("path", type=Path, metavar="IN")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    parser.add_argument(
        "--new", dest="force", action="store_false", help="refuse an OUT that is there"
    )
    for text in texts:
        parser.add_argument(f"--{text}")
    options = vars(parser.parse_args(arguments))
    path, out = options.pop("path"), options.pop("out")
    failed = f"{path} could not be written as {out}"
    return answer(lambda: convert(path, out, **options), failed)
