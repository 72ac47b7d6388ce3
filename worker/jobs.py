"""Jobs: work on this host's files that the API asked for, one at a time, in a child process."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from typing import IO, Any

import structlog

from app.settings import Settings
from app.store.records import Inspection, JobRecord
from app.store.store import Store
from worker.preparation import confined

log = structlog.get_logger("stoker.worker")

# A damaged file can make the HDF5 library crash, loop or allocate without end.
INSPECT_SECONDS = 180.0
INSPECT_MEMORY_BYTES = 6 * 2**30
OUTPUT_BYTES = 16 * 2**20
REMOVE_SECONDS = 3600.0
PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")


class JobRunner:
    """Runs at most one job; the agent waits on `pidfd`, then calls `ended`."""

    def __init__(self, settings: Settings, store: Store, worker_id: int) -> None:
        self._settings = settings
        self._store = store
        self._worker_id = worker_id
        self._job: JobRecord | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._deadline = 0.0
        self._too_slow = False
        self.pidfd: int | None = None

    def claim(self, now: float) -> bool:
        """Take the next job when none is under way; True when a child has been started for it."""
        while self._job is None:
            job = self._store.jobs.claim(self._worker_id)
            if job is None:
                return False
            self._job = job
            try:
                self._start(job, now)
            except (ValueError, OSError) as error:
                self._fail(job, str(error))
                self._job = None
            else:
                return True
        return False

    def _start(self, job: JobRecord, now: float) -> None:
        """ValueError when the job leads out of the roots, OSError when no child can be started."""
        if job.kind == "inspect_dataset":
            path = confined(job.payload["path"], self._settings.data_root)
            command = [sys.executable, "-P", "-m", "worker.trainer.inspect", str(path), "--json"]
            self._deadline = now + INSPECT_SECONDS
        else:
            root = self._settings.artifact_root
            paths = [str(confined(path, root)) for path in job.payload["paths"]]
            if str(root.resolve()) in paths:
                raise ValueError("the artifact root itself is never removed")
            command = ["rm", "-rf", "--one-file-system", "--", *paths]
            self._deadline = now + REMOVE_SECONDS
        self._too_slow = False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `_let_go`
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL if job.kind == "inspect_dataset" else subprocess.STDOUT,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ}
            | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        if job.kind == "inspect_dataset":
            _limit(self._process.pid)
        self.pidfd = os.pidfd_open(self._process.pid)

    def beat(self, now: float) -> None:
        """Keep the job ours, and end a child that takes too long."""
        if self._job is None or self._process is None:
            return
        if now > self._deadline:
            self._too_slow = True
            self._process.kill()
        self._store.jobs.beat(self._job.id, self._worker_id)

    def ended(self) -> None:
        """The child has exited: record what it found."""
        job, process, output = self._job, self._process, self._output
        assert job and process and output  # noqa: S101 - what has ended was started
        returncode = process.wait()
        output.seek(0)
        text = output.read(OUTPUT_BYTES + 1)
        self._let_go()
        if job.kind == "inspect_dataset":
            inspection = self._inspection(text, returncode)
            self._store.datasets.set_result(job.payload["name"], inspection)
            self._store.jobs.finish(job.id, self._worker_id, result={"state": inspection.state})
            log.info("dataset inspected", dataset=job.payload["name"], state=inspection.state)
        elif returncode == 0:
            self._store.jobs.finish(job.id, self._worker_id, result={})
        else:
            self._fail(job, text.decode("utf-8", "replace").strip()[:1000])

    def _inspection(self, text: bytes, returncode: int) -> Inspection:
        """What the child printed; a child that died says that the file is not safe to read."""
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError:
            how = (
                f"took longer than {INSPECT_SECONDS:g} seconds"
                if self._too_slow
                else f"died (exit code {returncode})"
            )
            message = (
                f"The inspection {how}: the file is damaged, or far from what HDF5 readers expect. "
                "Write it again and register it again."
            )
            return Inspection("invalid", problems=[{"code": "unreadable", "message": message}],
                              message=message)  # fmt: skip
        problems = found["problems"]
        return Inspection(
            state="invalid" if problems else "ready",
            fields=found.get("fields"),
            samples=found.get("samples"),
            layout=found.get("layout"),
            size_bytes=found.get("size_bytes"),
            fingerprint=found.get("fingerprint"),
            problems=[*problems, *({**w, "severity": "warning"} for w in found["warnings"])],
            read_probe=found.get("read_probe"),
            message=problems[0]["message"] if problems else None,
        )

    def _fail(self, job: JobRecord, error: str) -> None:
        log.warning("job failed", job=job.id, kind=job.kind, why=error)
        if job.kind == "inspect_dataset":
            problem = {"code": "unreadable", "message": error}
            self._store.datasets.set_result(
                job.payload["name"], Inspection("invalid", problems=[problem], message=error)
            )
        self._store.jobs.finish(job.id, self._worker_id, error=error)

    def pids(self) -> set[int]:
        """The child's process id, if there is one."""
        return set() if self._process is None else {self._process.pid}

    def _let_go(self) -> None:
        if self._output is not None:
            self._output.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        self._job = self._process = self._output = self.pidfd = None

    def close(self) -> None:
        """Kill the child; its job is taken up again by another agent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._let_go()


def _limit(pid: int) -> None:
    """Bound what an inspection may use, before it has opened the file."""
    for limit, value in (
        (resource.RLIMIT_AS, INSPECT_MEMORY_BYTES),
        (resource.RLIMIT_CPU, int(INSPECT_SECONDS)),
        (resource.RLIMIT_FSIZE, OUTPUT_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.prlimit(pid, limit, (value, value))
