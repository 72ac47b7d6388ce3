"""losses.csv of a run, for people."""

import os
from pathlib import Path

from worker.trainer.checkpoints.disk import sync_folder


class LossFile:
    """losses.csv of a run: one file over all its attempts, exact to the last bit.

    A checkpoint records the file's length, and resuming from it cuts the file back to that
    length, so the file ends up the same whether or not the run was interrupted.
    """

    HEADER = b"step,epoch,split,loss\n"

    def __init__(self, path: Path, keep_bytes: int) -> None:
        """Keep the first `keep_bytes` of the file; 0 starts it anew."""
        is_new = not path.exists()
        self._file = path.open("w+b" if is_new or not keep_bytes else "r+b")
        self.missing_bytes = max(0, keep_bytes - self._file.seek(0, os.SEEK_END))
        if keep_bytes and not self.missing_bytes:
            self._file.truncate(keep_bytes)
        if self._file.seek(0, os.SEEK_END) == 0:
            self._file.write(self.HEADER)
            self._file.flush()
        if is_new:
            sync_folder(path.parent)

    def append(self, step: int, epoch: int, split: str, loss: float) -> None:
        self._file.write(f"{step},{epoch},{split},{loss!r}\n".encode())
        self._file.flush()

    def length(self) -> int:
        """Bytes of all that was appended."""
        return self._file.tell()

    def sync(self) -> None:
        """Make all that was appended durable; any thread may."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
