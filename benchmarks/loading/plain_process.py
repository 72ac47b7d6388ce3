"""The process of a plain script, with the memory settings that Python comes with."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.loading.arms import Arm
from benchmarks.loading.files import DataFile
from benchmarks.loading.peers import dataloader, naive_chunks
from benchmarks.loading.serving import serve


def arms(file: DataFile, shuffled: bool) -> Iterator[Arm]:
    """The reference design and DataLoader as their users run them."""
    items, batches = (dataloader(file, 0, batched=b, shuffled=shuffled) for b in (False, True))
    for arm in (naive_chunks(file, shuffled=shuffled), items, batches):
        yield replace(arm, name=f"{arm.name}, plain script")


if __name__ == "__main__":
    serve(arms)
