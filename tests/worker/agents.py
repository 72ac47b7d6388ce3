"""Agents as processes, started quickly: see `agent_process.py`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = Path(__file__).parent / "agent_process.py"


class AgentStarter:
    """The process that forks agents."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def start(self, environment: dict[str, str], log: Path) -> "Agent":
        log.touch()
        return Agent(self, self.ask({"environment": environment, "log": str(log)}))

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Agent:
    """One agent, with the words of `subprocess.Popen`."""

    def __init__(self, starter: AgentStarter, pid: int) -> None:
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
                raise subprocess.TimeoutExpired("agent", timeout)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
