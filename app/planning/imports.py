"""What a process has of the host's memory once PyTorch is imported, by PyTorch's build."""

from dataclasses import dataclass
from typing import Literal

from app.planning.residency import MIB

Build = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Imports:
    """Bytes: what a trainer has resident before it builds anything, and what PyTorch's compiler
    adds; and of the PyTorch loader what no other process has, of one spawned, of a copy of a fork
    server, and of that server.
    """

    trainer: int
    compiler: int
    spawned: int
    forked: int
    fork_server: int


# PyTorch 2.13, h5py 3.16, 2 threads, on a host without a GPU, each within 1 MiB of three times:
# `python -m benchmarks memory`. The compiler, with PyTorch for the CPU: above an eager run of the
# same spec 99 to 165 MiB (seven specs of benchmarks/memory), and for an LSTM of 25 million weights
# 225 to 275.
IMPORTS: dict[Build, Imports] = {
    "cpu": Imports(
        trainer=245 * MIB,
        compiler=155 * MIB,
        spawned=158 * MIB,
        forked=14 * MIB,
        fork_server=155 * MIB,
    ),
    "cuda": Imports(
        trainer=527 * MIB,
        compiler=229 * MIB,
        spawned=292 * MIB,
        forked=14 * MIB,
        fork_server=289 * MIB,
    ),
}


def build_of(version: str) -> Build:
    """Of a version of PyTorch as its package says it; one that does not say `+cpu` has CUDA."""
    return "cpu" if version.endswith("+cpu") else "cuda"
