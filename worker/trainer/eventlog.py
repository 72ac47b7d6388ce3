"""What an attempt writes for others to read: events.jsonl for the agent, losses.csv for people."""

import os
import threading
import time
from pathlib import Path
from typing import Any

from app.plainjson import dump_json
from worker.trainer.disk import sync_folder


class EventLog:
    """Appends one JSON object a line, flushed per line; the agent reads along.

    Any thread may emit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seq = len(path.read_bytes().splitlines()) if path.exists() else 0
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def emit(self, kind: str, **data: Any) -> None:
        with self._lock:
            self._seq += 1
            event = {"seq": self._seq, "t": time.time(), "kind": kind, **data}
            self._file.write(dump_json(event) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


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
