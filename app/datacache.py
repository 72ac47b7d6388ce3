"""The data cache: what runs keep for the next one, where it lies, and how it is kept small.

An entry holds the tables that a recipe has prepared of data, or the scores of simple baselines. It
is a folder, named by a hash of all that these follow from: `manifest.json` and
`tables.safetensors`. Whoever reads, makes or removes one holds its lock, a file beside it.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

MANIFEST = "manifest.json"
TABLES = "tables.safetensors"
LOCKS = "locks"


def cache_folder(home: Path) -> Path:
    """Below the service's home; other caches there are trimmed by other rules."""
    return home / "data-cache"


@dataclass(frozen=True)
class Entry:
    """Tables or scores that were made once."""

    key: str
    recipe: str
    """Kind and version; "?" where the manifest cannot be read."""
    content: str
    """tables or baselines."""
    datasets: tuple[str, ...]
    bytes: int
    used_at: float
    """Unix seconds."""


class EntryLock:
    """One process at a time at an entry; it ends with the process, however that ends."""

    def __init__(self, folder: Path, key: str) -> None:
        """OSError where the folder cannot be made or written to."""
        (folder / LOCKS).mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder / LOCKS / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def take(self) -> bool:
        """Without waiting: whether it is held now."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


def entries(folder: Path) -> list[Entry]:
    """The one used last first; damaged ones too."""
    return sorted(_entries(folder), key=lambda entry: (-entry.used_at, entry.key))


def _entries(folder: Path) -> Iterator[Entry]:
    with suppress(FileNotFoundError):  # no folder yet, or an entry that is removed meanwhile
        for path in folder.iterdir():
            if path.name == LOCKS or path.name.startswith("."):
                continue
            with suppress(OSError):
                manifest, noted = _read(path / MANIFEST), path / MANIFEST
                yield Entry(
                    path.name,
                    f"{manifest.get('recipe', '?')} {manifest.get('version', '')}".strip(),
                    manifest.get("content", "tables"),
                    tuple(manifest.get("datasets", ())),
                    sum(file.stat().st_size for file in path.iterdir()),
                    (noted if noted.exists() else path).stat().st_mtime,
                )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remove(folder: Path, key: str) -> bool:
    """False where a trainer is at it. OSError."""
    with EntryLock(folder, key) as lock:
        if not lock.take():
            return False
        shutil.rmtree(folder / key)
        return True


def trim(folder: Path, most_bytes: int) -> None:
    """Remove those that were not used for the longest time until the rest takes at most so many
    bytes. One that a trainer is at stays.
    """
    total = 0
    for entry in entries(folder):
        total += entry.bytes
        if total > most_bytes:
            with suppress(OSError):  # another process removes it too, or nobody may
                remove(folder, entry.key)
