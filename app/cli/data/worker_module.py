"""Runs a module of the worker as a child, for what needs HDF5 and a file that may crash it."""

import subprocess
import sys
from importlib.util import find_spec

from app.cli.failures import CommandFailed
from app.installing import pip_install

INSPECTION_TIMEOUT_SECONDS = 300


def run_worker_module(
    module: str, *arguments: str, timeout_seconds: float | None = INSPECTION_TIMEOUT_SECONDS
) -> str:
    """Run a module of the worker as a child; returns its stdout, raises what it said on stderr."""
    if find_spec("h5py") is None:
        raise CommandFailed(
            "This needs the worker extra, which is not installed here: "
            f"{pip_install('stoker[worker]')}"
        )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"{arguments[0]}: no answer after {timeout_seconds:g} s; the file may be "
            "broken in a way that makes the HDF5 library loop."
        ) from None
    if done.returncode < 0:
        raise CommandFailed(
            f"{arguments[0]}: the reading process died of signal {-done.returncode}; the file is "
            "probably broken."
        )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise CommandFailed(said[-1] if said else f"{module} ended with {done.returncode}.")
    return done.stdout
