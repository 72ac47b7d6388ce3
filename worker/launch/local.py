"""Starts launchers on this host: the socket to each, its attempt, and the trainer's environment."""

import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from worker.launch.compile_cache import cache_folders
from worker.protocol import Launch, LeaseTerm, Order

PACKAGES = Path(__file__).parent.parent.parent
OWNERS_MEMORY = ("GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE")
OWNERS_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# A trainer sees nothing else of the agent's environment: no token, no database URL.
INHERITED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "TZ"),
    *(*OWNERS_WAITING, *OWNERS_MEMORY),
    *("CC", "CXX", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
# OpenMP's threads wait for each other by spinning: on busy cores for milliseconds, in which the one
# they wait for cannot run. So many rounds are enough where cores are idle (lab notes).
BRIEF_SPINNING = {"GOMP_SPINCOUNT": "1500"}
# What a step on a CPU frees it takes again in the next. It stays in the heap, up to 128 MiB at its
# end, in pages of 2 MiB; from the kernel it would come back zeroed, in pages of 4 KiB.
HEAP = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"
    f":glibc.malloc.mmap_threshold={2**25}:glibc.malloc.trim_threshold={2**27}"
}
HUGE_PAGES_SINCE = (2, 35)  # of the GNU C library
# With an earlier one, PyTorch asks for such pages for its tensors. Never both: tensors would begin
# at 2 MiB each, and the heap then has holes of which plans of memory cannot say when they come.
HUGE_TENSORS = {"THP_MEM_ALLOC_ENABLE": "1"}


def memory_settings(libc: tuple[str, str]) -> dict[str, str]:
    """The environment that lets a trainer keep its memory; `libc` as `platform.libc_ver` says."""
    name, version = libc
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return HEAP if name == "glibc" and numbers >= HUGE_PAGES_SINCE else HUGE_TENSORS


# A launcher that has not ended so long after it had to is stopped, or its trainer hangs in the
# kernel. It is killed, and the agent sees to what it leaves.
ANSWER_SECONDS = 30.0


class LauncherProcess:
    """A running launcher: its process, a descriptor that tells its end, and the control socket."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
        self._process = process
        self._buffer = b""
        self._unsent = b""
        self._lease_term: LeaseTerm | None = None  # the newest that was not sent yet
        self._grace_seconds = 0.0
        self.end_at: float | None = None
        """When it is killed unless it has ended (monotonic seconds)."""
        self.control = control
        self.pidfd = os.pidfd_open(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_unsent(self) -> bool:
        """Whether it does not read, and `flush` has something to try again."""
        return bool(self._unsent)

    def begin(self, launch: Launch, lease_term: LeaseTerm) -> None:
        """Give it its attempt, once, and how long that may go on without another beat."""
        self._grace_seconds = launch.grace_seconds
        self.hold(lease_term)
        self._send(launch.order())

    def hold(self, lease_term: LeaseTerm) -> None:
        """A beat was stored: the attempt may go on for so long from then."""
        self._lease_term = lease_term
        self.flush()

    def order(self, do: str) -> None:
        """Have it stop, kill, or dump. A trainer may have stopped it (SIGSTOP): it goes on."""
        self._send({"do": do})
        self._signal(signal.SIGCONT)
        if do != "dump":
            seconds = ANSWER_SECONDS + (self._grace_seconds if do == "stop" else 0.0)
            self.end_at = min(self.end_at or math.inf, time.monotonic() + seconds)

    def enforce(self, now: float) -> None:
        """Kill it if it has not ended in time."""
        if self.end_at is not None and now >= self.end_at:
            self.end_at = None
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            signal.pidfd_send_signal(self.pidfd, number)

    def _send(self, order: Order) -> None:
        self._unsent += _line(order)
        self.flush()

    def flush(self) -> None:
        """Send what the launcher takes now. One that has just ended needs no order."""
        try:
            while self._unsent or self._lease_term is not None:
                if not self._unsent and self._lease_term is not None:
                    self._unsent, self._lease_term = _line(self._lease_term.order()), None
                self._unsent = self._unsent[self.control.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent, self._lease_term = b"", None

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
        self._signal(signal.SIGCONT)
        os.close(self.pidfd)


def _line(order: Order) -> bytes:
    return json.dumps(order).encode() + b"\n"


def start_launcher(
    environment: Mapping[str, str], command: Sequence[str] | None = None, *, standby: bool = False
) -> LauncherProcess:
    """Start a launcher in a session of its own; OSError when this host cannot start processes.

    `command` replaces the trainer's, in tests; with `standby` a trainer is started at once, ahead
    of its attempt, with this environment.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    arguments = [f"--control-fd={theirs.fileno()}", *(["--standby"] if standby else [])]
    if command is not None:
        arguments.append(f"--command={json.dumps(list(command))}")
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-m", "worker.launch.launcher", *arguments],
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return LauncherProcess(process, ours)


def trainer_environment(home: Path, *, gpu: str | None, threads: int) -> dict[str, str]:
    """The whole environment of a trainer; `gpu` is the UUID of the only GPU it may see."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {
        "LANG": "C.UTF-8",
        **({} if kept.keys() & set(OWNERS_MEMORY) else memory_settings(platform.libc_ver())),
        **({} if kept.keys() & set(OWNERS_WAITING) else BRIEF_SPINNING),
        **cache_folders(home),
        **kept,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": gpu or "",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",  # NumPy only moves data here
        "PYTHONPATH": _python_path(),
        "PYTHONUNBUFFERED": "1",
        "STOKER_HOME": str(home),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    }


def _python_path() -> str:
    """The agent's own packages first: the launcher starts without site-packages (-S)."""
    given = os.environ.get("PYTHONPATH")
    return f"{PACKAGES}{os.pathsep}{given}" if given else str(PACKAGES)
