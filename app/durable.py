"""What has to be on the disk before others are told of it, and names of sockets there."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk when this returns. OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def socket_address(path: Path) -> str:
    """A name by which a socket's path can be bound or reached: the kernel takes 107 bytes."""
    if len(os.fsencode(path)) < 108:
        return str(path)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)  # open for as long as the name is
    return f"/proc/self/fd/{folder}/{path.name}"
