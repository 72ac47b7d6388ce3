"""Small disks for tests, which scripts fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, mebibytes: int, files: int = 10_000) -> Iterator[Path]:
    """An empty disk of that size at `place` while the block lasts, which takes so many files; skips
    where nobody may mount.
    """
    place.mkdir()
    size = f"size={mebibytes}m,nr_inodes={files}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
