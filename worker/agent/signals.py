"""SIGTERM and SIGINT as something to wait for, beside sockets and timers."""

import signal
import socket
import time

from worker.agent.devices import RELEASE_SECONDS

# From the second signal on, what has ended is read and recorded for so long at most: its GPUs may
# take most of that, and its files are read at some MiB a second.
RECORDING_SECONDS = RELEASE_SECONDS + 5.0


class Signals:
    """A descriptor that is readable when a signal came; the handlers only record.

    `seen`: how many have been read.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._heard_at = 0.0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno())
        self._previous = {
            number: signal.signal(number, lambda *_: None)
            for number in (signal.SIGTERM, signal.SIGINT)
        }

    def fileno(self) -> int:
        return self._reader.fileno()

    def read(self) -> None:
        """Count those that have arrived since the last call; call it only when there is one."""
        if self.seen < 2:  # those after the second do not prolong it
            self._heard_at = time.monotonic()
        self.seen += len(self._reader.recv(64))

    def is_overdue(self) -> bool:
        """Whether who has sent two has waited long enough."""
        return time.monotonic() > self._heard_at + RECORDING_SECONDS

    def close(self) -> None:
        """Give the signals back to whoever had them before."""
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()
