"""GPU telemetry: owns the NVML probe's process, keeps its last sample, and tells foreign work."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# A probe that is silent for so long is hung: it is killed, and asked again after the pause.
SILENCE_SECONDS = 10.0
RETRY_SECONDS = 60.0
CLOSE_SECONDS = 2.0
# Memory in use on an idle GPU beyond this share belongs to somebody, even if no process is seen.
UNEXPLAINED_MEMORY_SHARE = 0.1
# There while the kernel's driver is loaded; a container may see the first without the second.
DRIVER_SIGNS: tuple[Path, ...] = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
# The namespace that the host's own processes are in: PROC_PID_INIT_INO in the kernel's source.
HOST_PID_NAMESPACE = 0xEFFFFFFC
DEVICE_FILES = "/dev/nvidia"


def driver_is_loaded() -> bool:
    """Whether NVML should have something to say on this host."""
    return any(path.exists() for path in DRIVER_SIGNS)


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; None is what the driver does not tell. Ratios 0-1, sizes in bytes.

    `processes` compute, `graphics` draw: (pid, bytes). `seen_at` is monotonic seconds.
    """

    index: str
    uuid: str
    model: str
    driver: str
    utilization: float | None
    sm_active: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None
    energy_joules: float | None
    capability: tuple[int, int] | None
    processes: tuple[tuple[int, int | None], ...]
    graphics: tuple[tuple[int, int | None], ...] = ()
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    is_divided: bool = False
    """True if MIG has divided the GPU into slices."""
    seen_at: float = 0.0

    @classmethod
    def from_json(cls, document: dict[str, Any], seen_at: float) -> "GpuSample":
        """From a line of worker.telemetry.nvml."""
        values = dict(document)
        values["capability"] = tuple(values["capability"]) if values["capability"] else None
        for kind in ("processes", "graphics"):
            values[kind] = tuple((one["pid"], one["memory_bytes"]) for one in document[kind])
        return cls(**values, seen_at=seen_at)


class GpuTelemetry:
    """The last sample of all GPUs. `gpus` is None while there is none: absent is not idle.

    `has_answered`: NVML has said at least once what there is, even if that was "nothing".
    """

    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self._buffer = b""
        self._heard_at = 0.0
        self._retry_at: float | None = 0.0
        self.has_answered = False
        self.gpus: tuple[GpuSample, ...] | None = None
        self.why_absent: str | None = "the GPUs have not been asked yet"

    def fileno(self) -> int | None:
        """Readable when the probe has said something; None while no probe runs."""
        if self._process is None or self._process.stdout is None:
            return None
        return self._process.stdout.fileno()

    def tick(self, now: float) -> None:
        """Start the probe when it is due, and end one that hangs; `now` is monotonic."""
        self._killed = [process for process in self._killed if process.poll() is None]
        if self._process is not None and now - self._heard_at > SILENCE_SECONDS + self._period:
            self._end(f"the NVML probe was silent for {SILENCE_SECONDS:g} seconds", retry_at=now)
        if self._process is None and self._retry_at is not None and now >= self._retry_at:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "worker.telemetry.nvml", str(self._period)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert self._process.stdout is not None  # noqa: S101 - it is a pipe
            os.set_blocking(self._process.stdout.fileno(), False)
            self._heard_at = now

    def read(self, now: float) -> None:
        """Take in what the probe has printed."""
        fd = self.fileno()
        if fd is None:
            return
        try:
            received = os.read(fd, 2**20)
        except BlockingIOError:
            return
        if not received:
            self._end("the NVML probe ended", retry_at=now)
            return
        self._heard_at = now
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        for line in lines:
            self._take(json.loads(line), now)

    def _take(self, document: dict[str, Any], now: float) -> None:
        self.has_answered = True
        if "unavailable" in document:
            # Without a driver there is nothing to ask again for.
            self._end(str(document["unavailable"]), retry_at=now if driver_is_loaded() else None)
        else:
            self.why_absent = None
            self.gpus = tuple(GpuSample.from_json(gpu, now) for gpu in document["gpus"])

    def wait_for_first(self, timeout_seconds: float) -> None:
        """Block until the probe has answered once or the time is over; for the agent's start."""
        deadline = time.monotonic() + timeout_seconds
        self.tick(time.monotonic())
        while self.gpus is None and (fd := self.fileno()) is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([fd], [], [], remaining)[0]:
                return
            self.read(time.monotonic())

    def ask(self) -> None:
        """Have a sample made now; it is read as every other."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has just ended
                os.write(self._process.stdin.fileno(), b"\n")

    def pids(self) -> set[int]:
        """Processes of this probe that have not been reaped."""
        running = [] if self._process is None else [self._process]
        return {process.pid for process in (*running, *self._killed)}

    def close(self) -> None:
        """End the probe; one that does not die is left to the system."""
        self._end("the worker is going down", retry_at=None)
        for process in self._killed:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=CLOSE_SECONDS)

    def _end(self, why: str, *, retry_at: float | None) -> None:
        self.gpus = None
        self.why_absent = why
        self._buffer = b""
        self._retry_at = None if retry_at is None else retry_at + RETRY_SECONDS
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        # Not waited for: a probe that hangs in the driver does not even die of SIGKILL.
        self._killed.append(process)


def foreign_work(gpu: GpuSample, *, is_fresh: bool = True) -> str | None:
    """A sentence about other people's work on a GPU where no run of ours is; None: it is free.

    Who only draws (a desktop, a browser) disturbs nobody. A process that cannot be told from here
    counts by its memory, and only in a sample that is newer than the last run of ours (`is_fresh`),
    whose processes look just the same.
    """
    drawing = dict(gpu.graphics)
    computing = [(pid, memory) for pid, memory in gpu.processes if pid not in drawing]
    visible = [(pid, memory) for pid, memory in computing if _is_known_here(pid)]
    if visible:
        listed = ", ".join(_describe(pid, memory) for pid, memory in visible[:3])
        return f"GPU {gpu.index} is in use by {listed}; the slot waits until it is free."
    hidden = _hidden_bytes(gpu, computing)
    total = gpu.memory_total_bytes
    if not is_fresh or not total or hidden / total < UNEXPLAINED_MEMORY_SHARE:
        return None
    return (
        f"{hidden / 2**30:.1f} GiB of GPU {gpu.index} are in use by processes that cannot be seen "
        "from here (another container?); the slot waits until they are free."
    )


def newcomers(gpu: GpuSample, before: AbstractSet[int]) -> list[int]:
    """Processes that compute there and are not among those `before`."""
    drawing = dict(gpu.graphics)
    return [pid for pid, _ in gpu.processes if pid not in drawing and pid not in before]


def left_behind(gpu: GpuSample, before: AbstractSet[int]) -> list[int]:
    """Processes that a GPU lists although all of its run have ended; `before`: whom it listed when
    the run began.

    In a container, where process ids are others, all who have come since count.
    """
    since = newcomers(gpu, before)
    return [pid for pid in since if not (sees_the_host() and psutil.pid_exists(pid))]


def memory_of(gpu: GpuSample, ancestor: int) -> int | None:
    """Bytes of a GPU that the descendants of a process hold; None where the driver does not tell.

    In a container, where process ids are others, all who compute count: the slot's GPU is its own.
    """
    computing = dict(gpu.processes)
    if sees_the_host():
        computing = {pid: memory for pid, memory in computing.items() if _descends(pid, ancestor)}
    known = [memory for memory in computing.values() if memory is not None]
    return sum(known) if known and len(known) == len(computing) else None


def _descends(pid: int, ancestor: int) -> bool:
    try:
        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except psutil.Error:  # it has ended
        return False


def sees_the_host() -> bool:
    """Whether the process ids of the host, which NVML tells, are those of here."""
    return Path("/proc/self/ns/pid").stat().st_ino == HOST_PID_NAMESPACE


def _is_known_here(pid: int) -> bool:
    """Whether a process id of NVML's, which is the host's, means the process that has it here.

    In a container the same number may be any process: it is the one only if it has a GPU open.
    """
    if sees_the_host():
        return psutil.pid_exists(pid)
    opened: list[str] = []
    with suppress(OSError):  # it has ended, or is somebody else's
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                opened.append(str(file.readlink()))
    return any(path.startswith(DEVICE_FILES) for path in opened)


def _hidden_bytes(gpu: GpuSample, computing: list[tuple[int, int | None]]) -> int:
    """Memory held by processes that are not seen from here, as far as the driver tells."""
    if computing and all(memory is not None for _, memory in computing):
        return sum(memory or 0 for _, memory in computing)
    drawn = [memory for _, memory in gpu.graphics]
    if gpu.memory_used_bytes is None or None in drawn:  # a desktop may hold all of it
        return 0
    return gpu.memory_used_bytes - sum(memory or 0 for memory in drawn)


def _describe(pid: int, memory_bytes: int | None) -> str:
    try:
        process = psutil.Process(pid)
        who = f"{process.name()} (pid {pid}, user {process.username()})"
    except psutil.Error:
        who = f"process {pid}"
    return who if memory_bytes is None else f"{who} with {memory_bytes / 2**30:.1f} GiB"
