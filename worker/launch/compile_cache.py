"""What trainers have compiled: where it lies under HOME, and how it is kept small."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# Of the caches together; the steps of a model take a few MiB.
MOST_BYTES = 4 * 2**30
UNUSED_SECONDS = 30 * 86_400.0


@dataclass(frozen=True)
class _Kept:
    path: Path
    used_at: float
    size: int


def cache_folders(home: Path) -> dict[str, str]:
    """By the variable that names each to a trainer; other versions of PyTorch have their own."""
    folder = home / "caches" / f"torch-{_torch_version()}"
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
    }


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:  # then no trainer can start either
        return "none"


def trim_caches(home: Path, now: float) -> None:
    """Remove what no run has used for a month, and of the rest the oldest beyond the bound.

    `now` in Unix seconds. What a trainer misses it compiles again.
    """
    total = 0
    for kept in sorted(_kept(home / "caches"), key=lambda kept: -kept.used_at):
        total += kept.size
        if total > MOST_BYTES or now - kept.used_at > UNUSED_SECONDS:
            with suppress(OSError):  # another agent removes it, or nobody may
                kept.path.unlink()


def _kept(folder: Path) -> Iterator[_Kept]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                status = path.stat(follow_symlinks=False)
            except OSError:
                continue
            # Most file systems note a read once a day, and some never.
            yield _Kept(path, max(status.st_atime, status.st_mtime), status.st_size)
