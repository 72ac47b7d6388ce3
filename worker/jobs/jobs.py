"""Jobs: work on this host that the API asked for, one at a time, in a child process."""

import os
import resource
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

import structlog

from app.errors import LeaseLost, StokerError, Unavailable
from app.settings import Settings
from app.store.store import Store
from app.store.worker_records import JobRecord
from worker.agent.devices import Devices
from worker.agent.errand import WatchedRoot
from worker.jobs.export_work import export
from worker.jobs.import_work import read_weights
from worker.jobs.job_work import (
    OUTPUT_BYTES,
    JobEnd,
    JobOutcome,
    Work,
    inspection,
    reconciliation,
    removal,
)
from worker.jobs.probing import probe

log = structlog.get_logger("stoker.worker")


@dataclass
class JobChild:
    """A job under way. Its output goes to a file, which no child can block on."""

    job: JobRecord
    work: Work
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
        self.work.close()


class JobRunner:
    """Runs at most one job; the agent waits on its `pidfd`, then calls `ended`."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        devices: Devices,
        artifacts: WatchedRoot,
        worker_id: int,
    ) -> None:
        self._settings = settings
        self._artifacts = artifacts
        self._store = store
        self._devices = devices
        self.worker_id = worker_id
        self._child: JobChild | None = None
        self._untold: JobOutcome | None = None

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
            has_artifacts = self._artifacts.away is None
            job = self._store.jobs.claim(self.worker_id, artifacts=has_artifacts)
            if job is None:
                return False
            try:
                self._child = _start(job, self._work_of(job), now)
            except Exception as error:  # noqa: BLE001 - see _failed
                self._tell(_failed(job, error))
            else:
                return True
        return False

    def _work_of(self, job: JobRecord) -> Work:
        """ValueError when it must not be done here."""
        if job.kind == "inspect_dataset":
            return inspection(job, self._settings)
        if job.kind == "remove_artifacts":
            return removal(job, self._artifacts)
        if job.kind == "reconcile_checkpoints":
            return reconciliation(job, self._artifacts, self._store)
        if job.kind == "export_checkpoint":
            return export(job, self._settings, self._store, self._devices)
        if job.kind == "import_checkpoint":
            return read_weights(job, self._settings)
        return probe(job, self._settings, self._devices)

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
        try:
            outcome = child.work.outcome(JobEnd(text, returncode, child.too_slow))
        except Exception as error:  # noqa: BLE001 - see _failed
            outcome = _failed(child.job, error)
        self._tell(outcome)

    def _tell(self, outcome: JobOutcome) -> None:
        self._untold = outcome
        job = outcome.job
        try:
            self._store.jobs.finish(
                job.id,
                self.worker_id,
                inspection=outcome.inspection,
                result=outcome.result,
                error=outcome.error,
            )
        except LeaseLost as lost:
            log.warning("a job was given to another worker", job=job.id, why=lost.detail)
        except Unavailable:
            raise
        except Exception as error:
            if outcome.error is None:
                self._tell(_failed(job, error))
                return
            log.exception("the end of a job cannot be told", job=job.id)
        self._untold = None
        log.info("job ended", job=job.id, kind=job.kind, error=outcome.error)

    def close(self) -> None:
        """Kill the child; another agent takes its job up again."""
        if self._child is not None:
            self._child.close()


def _failed(job: JobRecord, error: Exception) -> JobOutcome:
    """How far an error of a job reaches, whatever it is: to the job's end, which tells of it."""
    if isinstance(error, ValueError | OSError):
        return JobOutcome(job, error=f"{error}.")
    if isinstance(error, StokerError):
        return JobOutcome(job, error=error.detail)
    log.error("a job fails here", job=job.id, kind=job.kind, exc_info=error)
    told = f"The worker could not do it ({type(error).__name__}: {error}); its log says more."
    return JobOutcome(job, error=told)


def _start(job: JobRecord, work: Work, now: float) -> JobChild:
    """OSError when no child can be started; nothing is held then, and no process is left."""
    with ExitStack() as undone:
        undone.callback(work.close)
        output = undone.enter_context(tempfile.TemporaryFile())
        process = _spawn(work, output)
        undone.callback(process.wait)
        undone.callback(process.kill)
        for limit, value in work.limits.items():  # they stay through exec
            _, hard = resource.prlimit(process.pid, limit)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(process.pid, limit, (most, most))
        child = JobChild(job, work, process, output, os.pidfd_open(process.pid), now + work.seconds)
        undone.pop_all()
        return child


def _spawn(work: Work, output: IO[bytes]) -> "subprocess.Popen[bytes]":
    with tempfile.TemporaryFile() as given:
        given.write(work.given)
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.launch.bound", str(os.getpid()), *work.command],
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT if work.tells_errors else subprocess.DEVNULL,
            env=dict(work.environment),
            start_new_session=True,
        )
