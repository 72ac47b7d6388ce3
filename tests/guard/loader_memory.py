"""What processes of the PyTorch loader take: `python -m tests.guard.loader_memory`."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.trainer_data.factories import loaded, write_arrays
from worker.trainer.data.order import Order
from worker.trainer.data.split import Part

MIB = 2**20


class Taken(NamedTuple):
    """Bytes of a process: resident, with its share of what others have too, and of its own."""

    rss: int
    pss: int
    uss: int


def measure(context: str) -> tuple[Sequence[Taken], int | None]:
    """Of two processes that have read, and of the fork server as long as it has no copies."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_arrays(Path(folder) / "numbers.h5")
        part, order = Part("numbers", range(100)), Order(100, 0, "full")
        batches = loaded(path, part, order, num_workers=2, multiprocessing_context=context)
        under_way = batches.iterate(0)
        for _ in range(4):
            next(under_way)
        found = [_taken(pid) for pid in batches.pids]
        batches.close()
    servers = [
        child.memory_full_info().uss
        for child in psutil.Process().children()
        if "forkserver" in " ".join(child.cmdline())
    ]
    return found, servers[0] if servers else None


def _taken(pid: int) -> Taken:
    memory = psutil.Process(pid).memory_full_info()
    return Taken(memory.rss, memory.pss, memory.uss)


def main() -> None:
    """Print the table of docs/memory.md."""
    print("| process | RSS, MiB | PSS, MiB | its own, MiB |\n|---|---|---|---|")  # noqa: T201
    for context in ("spawn", "forkserver"):
        found, server = measure(context)
        for each in found:
            sizes = " | ".join(f"{size / MIB:,.0f}" for size in each)
            print(f"| {context} | {sizes} |")  # noqa: T201
        if server is not None:
            print(f"| the fork server alone | | | {server / MIB:,.0f} |")  # noqa: T201


if __name__ == "__main__":
    main()
