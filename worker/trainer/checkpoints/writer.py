"""Writes checkpoints beside the training: one at a time, in a thread of its own."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Hashing and writing do not hold Python's lock, so the training goes on meanwhile."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write: Future[object] | None = None

    @property
    def is_busy(self) -> bool:
        return self._write is not None and not self._write.done()

    @property
    def has_failed(self) -> bool:
        """Whether `wait` would raise at once."""
        write = self._write
        return write is not None and write.done() and write.exception() is not None

    def begin(self, write: Callable[[], object]) -> None:
        """Have `write` done, after what was begun before; see `wait`."""
        self._write = self._thread.submit(write)

    def wait(self) -> None:
        """Until what was begun is done; raises what went wrong with it, once."""
        write, self._write = self._write, None
        if write is not None:
            write.result()

    def close(self) -> None:
        """Let a write end although the training has failed: the checkpoint is good."""
        try:
            self.wait()
        except Exception:
            logger.exception("the last checkpoint could not be written")
        finally:
            self._thread.shutdown()
