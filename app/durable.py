"""What has to be on the disk before others are told of it."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk when this returns. OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
