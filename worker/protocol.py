"""What agent and launcher say to each other: the attempt, and the launcher's side of the socket."""

import json
import math
import select
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

Order = dict[str, Any]
STOP: Order = {"do": "stop"}


def boottime() -> float:
    """Seconds since the host's start, those included in which it was asleep: a lease goes on
    meanwhile.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseTerm(NamedTuple):
    """How long a trainer may train on the strength of the last beat that was stored, in seconds of
    `boottime`: it is asked to stop at the first, and not alive after the second.
    """

    stop_at: float = math.inf
    kill_at: float = math.inf

    def order(self) -> Order:
        """As JSON can say it."""
        return {"do": "hold", "stop_at": self.stop_at, "kill_at": self.kill_at}

    @classmethod
    def of(cls, order: Order) -> "LeaseTerm":
        """What `order` said."""
        return cls(order["stop_at"], order["kill_at"])


class Launch(NamedTuple):
    """What a launcher is told of its attempt; the names are those of the order to begin."""

    attempt_dir: Path
    slot_locks: tuple[Path, ...]
    run_lock: Path
    grace_seconds: float
    environment: dict[str, str]

    def order(self) -> Order:
        """As JSON can say it."""
        paths = {"attempt_dir": str(self.attempt_dir), "run_lock": str(self.run_lock)}
        return {
            "do": "begin",
            **self._asdict(),
            **paths,
            "slot_locks": list(map(str, self.slot_locks)),
        }

    @classmethod
    def of(cls, order: Order) -> "Launch":
        """What `order` said."""
        return cls(
            attempt_dir=Path(order["attempt_dir"]),
            slot_locks=tuple(map(Path, order["slot_locks"])),
            run_lock=Path(order["run_lock"]),
            grace_seconds=order["grace_seconds"],
            environment=order["environment"],
        )


class Control:
    """Orders from the agent, in their order; SIGTERM to the launcher itself is one to stop.

    `lease_term` is what the agent has said last of how long the attempt may go on.
    """

    def __init__(self, fd: int) -> None:
        self.lease_term = LeaseTerm()
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._buffer = b""
        self._ended = False
        self._orders: deque[Order] = deque()
        self._wake, self._signalled = socket.socketpair()
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno())
        signal.signal(signal.SIGTERM, lambda *_: None)  # recorded by the wake-up descriptor
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the agent's business
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def wait(self, *, timeout: float | None, pidfd: int | None = None) -> Order | None:
        """The next order; None after `timeout` seconds, when `pidfd` ends, or with a new lease
        term.

        The end of the file is one order to stop: the agent is gone.
        """
        if not self._orders:
            self._receive(timeout, pidfd)
        return self._orders.popleft() if self._orders else None

    def tell(self, **message: Any) -> None:
        """Send one line. An agent that is gone is no error: the next wait reports it."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self, timeout: float | None, pidfd: int | None) -> None:
        sources = [self._wake] if self._ended else [self._wake, self._socket]
        watched: list[Any] = [*sources, *([] if pidfd is None else [pidfd])]
        ready, _, _ = select.select(watched, [], [], timeout)
        if self._wake in ready:
            self._wake.recv(64)
            self._orders.append(STOP)
        if self._socket in ready:
            self._take(self._read())

    def _take(self, orders: list[Order]) -> None:
        for order in orders:
            if order["do"] == "hold":
                self.lease_term = LeaseTerm.of(order)
            else:
                self._orders.append(order)

    def _read(self) -> list[Order]:
        try:
            received = self._socket.recv(65536)
        except ConnectionError:
            received = b""
        if not received:
            self._ended = True
            return [STOP]
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        return [json.loads(line) for line in lines]
