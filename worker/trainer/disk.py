"""The five operations that durability rests on, named so that a test can replay their prefixes."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def make_folder(path: Path) -> None:
    path.mkdir()


def write_file(path: Path, pieces: Iterable[memoryview]) -> None:
    with path.open("xb", buffering=0) as file:
        for piece in pieces:
            while piece:  # a signal, and Linux above 2 GiB, may end a write early
                piece = piece[file.write(piece) :]


def sync_file(path: Path) -> None:
    with _opened(path) as descriptor:
        os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names inside a folder durable."""
    with _opened(path) as descriptor:
        os.fsync(descriptor)


def rename(source: Path, target: Path) -> None:
    source.rename(target)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
