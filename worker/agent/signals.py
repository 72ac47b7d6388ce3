"""SIGTERM and SIGINT as something to wait for, beside sockets and timers."""

import signal
import socket


class Signals:
    """A descriptor that is readable when a signal came; the handlers only record."""

    def __init__(self) -> None:
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

    def count(self) -> int:
        """How many arrived since the last call; call it only when there is one."""
        return len(self._reader.recv(64))

    def close(self) -> None:
        """Give the signals back to whoever had them before."""
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()
