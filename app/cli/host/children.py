"""Child processes of `stoker up`: started with a pipe for what they say, ended in good order."""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field

PR_SET_PDEATHSIG = 1
# This many ends of a child within so many seconds, and it is not started again.
MOST_DEATHS = 3
DEATHS_WITHIN_SECONDS = 60.0

LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class HostChild:
    """One command of this program, as a child in a session of its own."""

    name: str
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    output: int = -1
    rest: bytes = b""
    last_line: str = ""
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_DEATHS))

    def start(self) -> int:
        """Start it; returns the file descriptor of its output.

        A session of its own keeps the terminal's Ctrl-C from it: the parent decides who ends when.
        Should the parent be killed, the kernel asks the child to end.
        """
        parent = os.getpid()

        def follow_parent() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

        self.output, their_end = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "app.cli", self.name],
            stdin=subprocess.DEVNULL,
            stdout=their_end,
            stderr=their_end,
            env=self.environment,
            start_new_session=True,
            preexec_fn=follow_parent,  # safe: this process has one thread
        )
        os.close(their_end)
        return self.output

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def how_it_ended(self) -> str:
        code = self.process.poll() if self.process is not None else None
        if code is None:
            return "not started"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def may_start_again(self) -> bool:
        """Count its end; whether it has ended too often lately."""
        self.deaths.append(time.monotonic())
        return (
            len(self.deaths) < MOST_DEATHS
            or self.deaths[-1] - self.deaths[0] > DEATHS_WITHIN_SECONDS
        )

    def lines(self) -> list[str] | None:
        """What it said since last time, in whole lines; None when it has closed its output."""
        piece = os.read(self.output, 1 << 16)
        if not piece:
            return None
        *whole, self.rest = (self.rest + piece).split(b"\n")
        lines = [line.decode(errors="replace") for line in whole]
        self.last_line = next((line for line in reversed(lines) if line.strip()), self.last_line)
        return lines

    def last_words(self) -> str:
        """What it said last, as the end of a sentence."""
        return f": {self.last_line.strip().removeprefix('error: ')}" if self.last_line else "."


class Outputs:
    """Reads what children say, and wakes up when a signal arrives."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def follow(self, child: HostChild) -> None:
        """Start a child, also once more, and listen to it."""
        self._leave(child)
        self._selector.register(child.start(), selectors.EVENT_READ, child)

    def _leave(self, child: HostChild) -> None:
        if child.output >= 0:
            self._selector.unregister(child.output)
            os.close(child.output)
            child.output = -1

    def wait(self, seconds: float) -> list[tuple[str, str]]:
        """(child's name, line) of what was said within so many seconds, as soon as there is any."""
        said: list[tuple[str, str]] = []
        for key, _ in self._selector.select(seconds):
            if key.fd == self._wake_reader:
                os.read(self._wake_reader, 4096)
                continue
            child: HostChild = key.data
            lines = child.lines()
            if lines is None:
                self._leave(child)
            else:
                said += [(child.name, line) for line in lines]
        return said
