"""Reads files that a script may have replaced: regular files alone, without waiting for anybody.

A script can write to the folder of its run. A FIFO in the place of a file would hold up whoever
opens it, and a link to a device would never end.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


class NotReadable(OSError):
    """It is a FIFO, a device or a socket, or larger than such a file ever is."""


def open_regular(path: Path) -> BufferedReader:
    """Opens a file for reading. Raises OSError, of which NotReadable is one."""
    return os.fdopen(regular_descriptor(path, os.O_RDONLY), "rb")


def regular_descriptor(path: Path, flags: int) -> int:
    """Returns a descriptor, as os.open does. Raises OSError, of which NotReadable is one."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotReadable(f"{path} is no regular file")


def read_regular(path: Path, limit: int = 2**20) -> bytes:
    """Returns what the file holds. Raises OSError; NotReadable if that is over `limit` bytes."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise NotReadable(f"{path} has more than {limit:,} bytes")
    return data
