"""The five operations that durability rests on, named so that a test can replay their prefixes."""

from collections.abc import Iterable
from pathlib import Path

from app.durable import sync


def make_folder(path: Path) -> None:
    path.mkdir()


def write_file(path: Path, pieces: Iterable[memoryview]) -> None:
    with path.open("xb", buffering=0) as file:
        for piece in pieces:
            while piece:  # a signal, and Linux above 2 GiB, may end a write early
                piece = piece[file.write(piece) :]


def sync_file(path: Path) -> None:
    sync(path)


def sync_folder(path: Path) -> None:
    """Make the names inside a folder durable."""
    sync(path)


def rename(source: Path, target: Path) -> None:
    source.rename(target)
