"""Processes that are forked of one that has imported what they need.

To import that in each of them takes seconds of a core.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]


class Starter:
    """The process that forks, of a module that calls `serve`."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __enter__(self) -> Self:
        # The kernel shows its environment as that of each that it forks, for good: so it has no
        # home, or all of them would seem to be of the test that came first.
        environment = {n: value for n, value in os.environ.items() if not n.startswith("STOKER_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def start(self, what: str, environment: Mapping[str, str], log: Path) -> "Forked":
        """`what` of those that the module can be, with this environment and output."""
        log.touch()
        order = {"what": what, "environment": dict(environment), "log": str(log)}
        return Forked(self, self.ask(order))

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Forked:
    """One of them, with the words of `subprocess.Popen`."""

    def __init__(self, starter: Starter, pid: int) -> None:
        self.pid = pid
        self._starter = starter
        self._ended: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None: it is alive."""
        if self._ended is None:
            self._ended = self._starter.ask({"poll": self.pid})
        return self._ended

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(kinds: Mapping[str, Callable[[], int]]) -> None:
    """Fork one for each line of stdin, and answer with its pid, or how one of them ended."""
    for line in sys.stdin:
        order = json.loads(line)
        told = _ended(order["poll"]) if "poll" in order else _fork(kinds, **order)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _ended(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(
    kinds: Mapping[str, Callable[[], int]], what: str, environment: dict[str, str], log: str
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        code = kinds[what]()
    except BaseException:  # noqa: BLE001 - as at the end of any process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
