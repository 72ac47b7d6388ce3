"""Starts an attempt on this host: the launcher, the socket to it, and the trainer's environment."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).parent.parent.parent
# A trainer sees nothing else of the agent's environment: no token, no database URL. How OpenMP's
# threads wait is the owner's to say: spinning is fastest on idle cores and slowest on busy ones.
INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "TZ"),
    *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"),
)


@dataclass(frozen=True)
class Launch:
    """What the launcher is told; `command` replaces the trainer's, in tests."""

    attempt_dir: Path
    slot_lock: Path
    run_lock: Path
    grace_seconds: float
    environment: Mapping[str, str]
    command: Sequence[str] | None = None


class Launched:
    """A running launcher: its process, a descriptor that tells its end, and the control socket."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
        self._process = process
        self._buffer = b""
        self.control = control
        self.pidfd = os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, do: str) -> None:
        """Send stop, kill or dump; a launcher that has just ended needs no order."""
        try:
            self.control.sendall(json.dumps({"do": do}).encode() + b"\n")
        except OSError:
            return

    def messages(self) -> list[dict[str, Any]] | None:
        """What the launcher said since the last call; None at the end of its side."""
        try:
            received = self.control.recv(65536)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        if not received:
            return None
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def returncode(self) -> int | None:
        """The launcher's own exit code; None while it lives."""
        return self._process.poll()

    def close(self) -> None:
        """Let go of both descriptors; for the launcher a closed socket is an order to stop."""
        self.control.close()
        os.close(self.pidfd)


def launch(plan: Launch) -> Launched:
    """Start a launcher in a session of its own; OSError when this host cannot start processes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    arguments = [
        str(plan.attempt_dir),
        f"--control-fd={theirs.fileno()}",
        f"--slot-lock={plan.slot_lock}",
        f"--run-lock={plan.run_lock}",
        f"--grace={plan.grace_seconds}",
    ]
    if plan.command is not None:
        arguments.append(f"--command={json.dumps(list(plan.command))}")
    with theirs, (plan.attempt_dir / "trainer.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-m", "worker.launcher", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=plan.attempt_dir,
            env=dict(plan.environment),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return Launched(process, ours)


def trainer_environment(home: Path, *, gpu: str | None, threads: int) -> dict[str, str]:
    """The whole environment of a trainer; `gpu` is the UUID of the only GPU it may see."""
    caches = home / "caches"
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {
        "LANG": "C.UTF-8",
        **kept,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": gpu or "",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": _python_path(),
        "PYTHONUNBUFFERED": "1",
        "STOKER_HOME": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
    }


def _python_path() -> str:
    """The agent's own packages first: the launcher starts without site-packages (-S)."""
    given = os.environ.get("PYTHONPATH")
    return f"{PACKAGES}{os.pathsep}{given}" if given else str(PACKAGES)
