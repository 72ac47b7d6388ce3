"""Keeps a trainer's log from filling the disk: its middle goes, as a hole in the file."""

import ctypes
import os
from pathlib import Path

import structlog

from app.store.telemetry.logs import HEAD_BYTES
from worker.regular_files import regular_descriptor

log = structlog.get_logger("stoker.worker")

FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
END_BYTES = 64 * 2**20
# So much has to be gained before the file is touched again.
STEP_BYTES = 2**20
# Always as long, so that a newer one covers the one before.
NOTE = "\n[to spare the disk, what was printed up to byte {:>20,} is cut out: it reads as 0]\n"

_libc = ctypes.CDLL(None, use_errno=True)


class LogTrimmer:
    """Of one log the first `begin` and the last `end` bytes stay, and a note between them.

    Its writer appends, and nothing moves: sizes and offsets are what they would be without it, and
    only bytes that were written long ago are touched. Whoever reads at most `end` bytes behind the
    end, or below `begin`, never meets the hole.
    """

    def __init__(
        self, path: Path, begin: int = HEAD_BYTES, end: int = END_BYTES, step: int = STEP_BYTES
    ) -> None:
        self._path = path
        self._note_at = begin
        self._hole_at = self._cut_to = begin + len(NOTE.format(0))
        self._end = end
        self._step = step
        self._has_warned = False

    def trim(self) -> None:
        """Cut out what has become too much. Where that cannot be done it is said, once."""
        try:
            stop = self._path.stat().st_size - self._end
            if stop - self._cut_to >= self._step:
                self._cut(stop)
        except FileNotFoundError:
            return
        except OSError as error:
            self._warn(error)

    def _cut(self, stop: int) -> None:
        # A link may lead to a file of the user's.
        descriptor = regular_descriptor(self._path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            # All of it each time: a block that two holes met in would stay on the disk.
            punch_hole(descriptor, self._hole_at, stop - self._hole_at)
            self._cut_to = stop
            os.pwrite(descriptor, NOTE.format(stop).encode(), self._note_at)
        finally:
            os.close(descriptor)

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            log.warning(
                "the middle of a long log cannot be cut out: it grows until the attempt ends",
                log=str(self._path),
                why=error.strerror,
            )
        self._has_warned = True


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give these bytes of a file back to the disk; they read as zeros. OSError where the file
    system has no holes.
    """
    how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    if _libc.fallocate(fd, how, ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
