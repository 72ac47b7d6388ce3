"""Jobs: work on this host's files that the API asked for, one at a time, in a child process."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO

import structlog

from app.errors import LeaseLost
from app.settings import Settings
from app.store.records import Inspection
from app.store.store import Store
from app.store.worker_records import JobRecord
from worker.preparation import confined

log = structlog.get_logger("stoker.worker")

# A damaged file can make the HDF5 library crash, loop or allocate without end.
INSPECT_SECONDS = 180.0
INSPECT_MEMORY_BYTES = 6 * 2**30
REMOVE_SECONDS = 3600.0
OUTPUT_BYTES = 16 * 2**20
PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")


@dataclass
class Child:
    """A job under way. Its output goes to a file, which no child can block on."""

    job: JobRecord
    process: "subprocess.Popen[bytes]"
    output: IO[bytes]
    pidfd: int
    deadline: float
    too_slow: bool = False

    def close(self) -> None:
        """Kill it if it lives; reap it."""
        self.process.kill()
        self.process.wait()
        self.output.close()
        os.close(self.pidfd)


@dataclass(frozen=True)
class Outcome:
    """How a job ended; kept until the store has been told."""

    job: JobRecord
    inspection: Inspection | None = None
    error: str | None = None


class JobRunner:
    """Runs at most one job; the agent waits on its `pidfd`, then calls `ended`."""

    def __init__(self, settings: Settings, store: Store, worker_id: int) -> None:
        self._settings = settings
        self._store = store
        self.worker_id = worker_id
        self._child: Child | None = None
        self._untold: Outcome | None = None

    @property
    def pidfd(self) -> int | None:
        """Readable when the child has ended; None while there is none."""
        return None if self._child is None else self._child.pidfd

    def pids(self) -> set[int]:
        """The child's process id, if there is one."""
        return set() if self._child is None else {self._child.process.pid}

    def claim(self, now: float) -> bool:
        """Take the next job when none is under way; True when a child has been started for it."""
        while self._child is None and self._untold is None:
            job = self._store.jobs.claim(self.worker_id)
            if job is None:
                return False
            try:
                self._child = self._start(job, now)
            except (ValueError, OSError) as error:
                self._tell(Outcome(job, error=f"{error}."))
            else:
                return True
        return False

    def _start(self, job: JobRecord, now: float) -> Child:
        """ValueError when the job leads out of the roots, OSError when no child can be started."""
        inspects = job.kind == "inspect_dataset"
        command = self._inspection_command(job) if inspects else self._removal_command(job)
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL if inspects else subprocess.STDOUT,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ}
            | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        if inspects:
            _limit(process.pid)
        seconds = INSPECT_SECONDS if inspects else REMOVE_SECONDS
        return Child(job, process, output, os.pidfd_open(process.pid), now + seconds)

    def _inspection_command(self, job: JobRecord) -> list[str]:
        path = confined(job.payload["path"], self._settings.data_root)
        return [sys.executable, "-P", "-m", "worker.trainer.inspect", str(path), "--json"]

    def _removal_command(self, job: JobRecord) -> list[str]:
        root = self._settings.artifact_root.resolve()
        paths = [confined(path, root) for path in job.payload["paths"]]
        if root in paths:
            raise ValueError("The artifact root itself is never removed")
        return ["rm", "-rf", "--one-file-system", "--", *map(str, paths)]

    def beat(self, now: float) -> None:
        """End a child that takes too long; tell the store what it could not be told before."""
        if self._child is not None and now > self._child.deadline:
            self._child.too_slow = True
            self._child.process.kill()
        if self._untold is not None:
            self._tell(self._untold)

    def ended(self) -> None:
        """The child has exited: record what it found."""
        child, self._child = self._child, None
        assert child is not None  # noqa: S101 - it is what has ended
        returncode = child.process.wait()
        child.output.seek(0)
        text = child.output.read(OUTPUT_BYTES)
        child.close()
        if child.job.kind == "inspect_dataset":
            found = _inspection(text, returncode, too_slow=child.too_slow)
            self._tell(Outcome(child.job, inspection=found))
        elif returncode == 0:
            self._tell(Outcome(child.job))
        else:
            self._tell(Outcome(child.job, error=text.decode("utf-8", "replace").strip()[:1000]))

    def _tell(self, outcome: Outcome) -> None:
        self._untold = outcome
        job = outcome.job
        try:
            self._store.jobs.finish(
                job.id, self.worker_id, inspection=outcome.inspection, error=outcome.error
            )
        except LeaseLost as lost:
            log.warning("a job was given to another worker", job=job.id, why=lost.detail)
        self._untold = None
        log.info("job ended", job=job.id, kind=job.kind, error=outcome.error)

    def close(self) -> None:
        """Kill the child; another agent takes its job up again."""
        if self._child is not None:
            self._child.close()


def _inspection(text: bytes, returncode: int, *, too_slow: bool) -> Inspection:
    """What the child printed; a child that died says that the file is not safe to read."""
    try:
        found = json.loads(text)
    except ValueError:
        limit = f"took longer than {INSPECT_SECONDS:g} seconds"
        how = limit if too_slow else f"died (exit code {returncode})"
        message = (
            f"The inspection {how}: the file is damaged, or far from what HDF5 readers expect. "
            "Write it again, then register it again."
        )
        problem = {"code": "unreadable", "message": message}
        return Inspection("invalid", problems=[problem], message=message)
    problems = found["problems"]
    return Inspection(
        state="invalid" if problems else "ready",
        fields=found.get("fields"),
        samples=found.get("samples"),
        layout=found.get("layout"),
        size_bytes=found.get("size_bytes"),
        fingerprint=found.get("fingerprint"),
        problems=[
            *problems,
            *({**warning, "severity": "warning"} for warning in found["warnings"]),
        ],
        read_probe=found.get("read_probe"),
        message=problems[0]["message"] if problems else None,
    )


def _limit(pid: int) -> None:
    """Bound what an inspection may use, before it has opened the file."""
    for limit, value in (
        (resource.RLIMIT_AS, INSPECT_MEMORY_BYTES),
        (resource.RLIMIT_CPU, int(INSPECT_SECONDS)),
        (resource.RLIMIT_FSIZE, OUTPUT_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.prlimit(pid, limit, (value, value))
