"""The process of a plain script, with the memory settings that Python comes with."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.loading.arms import Arm
from benchmarks.loading.files import DataFile
from benchmarks.loading.peers import naive_chunks
from benchmarks.loading.serving import serve


def arms(file: DataFile, shuffled: bool) -> Iterator[Arm]:
    """The reference design as its users run it."""
    arm = naive_chunks(file, shuffled=shuffled)
    yield replace(arm, name=f"{arm.name}, plain script")


if __name__ == "__main__":
    serve(arms)
