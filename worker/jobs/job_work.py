"""What the child of a job does, by the job's kind, and what its end means."""

import json
import os
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.settings import Settings
from app.store.records import Inspection
from app.store.store import Store
from app.store.worker_records import JobRecord
from worker.agent.errand import WatchedRoot
from worker.start.preparation import confined

# A damaged file can make the HDF5 library crash, loop or allocate without end.
INSPECT_SECONDS = 180.0
INSPECT_MEMORY_BYTES = 6 * 2**30
REMOVE_SECONDS = 3600.0
RECONCILE_SECONDS = 600.0
OUTPUT_BYTES = 16 * 2**20
PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended; kept until the store has been told. `error` is a sentence."""

    job: JobRecord
    inspection: Inspection | None = None
    result: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True)
class JobEnd:
    """What a child printed, and how it exited."""

    text: bytes
    returncode: int
    too_slow: bool


def _nothing() -> None:
    """Nothing was held."""


@dataclass(frozen=True)
class Work:
    """A child to start, with its bounds. `close` gives back what was held for it."""

    command: list[str]
    seconds: float
    outcome: Callable[[JobEnd], JobOutcome]
    environment: Mapping[str, str]
    given: bytes = b""
    """Its standard input."""
    limits: Mapping[int, int] = field(default_factory=dict)
    tells_errors: bool = False
    """Whether what it says on stderr belongs to its output."""
    close: Callable[[], None] = _nothing


def inspection(job: JobRecord, settings: Settings) -> Work:
    """Look into a dataset. ValueError when its path leads out of the data root."""
    path = confined(job.payload["path"], settings.data_root)

    def outcome(end: JobEnd) -> JobOutcome:
        return JobOutcome(job, inspection=_found(end))

    return Work(
        [sys.executable, "-P", "-m", "worker.trainer.tools.inspect", str(path), "--json"],
        INSPECT_SECONDS,
        outcome,
        _environment(),
        limits={
            resource.RLIMIT_AS: INSPECT_MEMORY_BYTES,
            resource.RLIMIT_CPU: int(INSPECT_SECONDS),
            resource.RLIMIT_FSIZE: OUTPUT_BYTES,
            resource.RLIMIT_CORE: 0,
        },
    )


def removal(job: JobRecord, artifacts: WatchedRoot) -> Work:
    """Remove artifacts; the child says whether they are gone."""

    def outcome(end: JobEnd) -> JobOutcome:
        error = _why_not("The removal", REMOVE_SECONDS, end) if end.returncode else None
        return JobOutcome(job, error=error)

    return Work(
        [*_module("worker.jobs.remove"), str(artifacts.path), artifacts.database_id],
        REMOVE_SECONDS,
        outcome,
        _environment(),
        given=json.dumps(job.payload["paths"]).encode(),
        tells_errors=True,
    )


def reconciliation(job: JobRecord, artifacts: WatchedRoot, store: Store) -> Work:
    """Compares the folders of a run that ended unwatched with what the store knows of it."""

    def outcome(end: JobEnd) -> JobOutcome:
        if end.returncode:
            return JobOutcome(
                job, error=_why_not("The look at its folders", RECONCILE_SECONDS, end)
            )
        return JobOutcome(job, result=json.loads(end.text))

    root, run_id = str(artifacts.path), job.payload["run_id"]
    known = {
        "checkpoints": [asdict(row) for row in store.checkpoints.list(run_id)],
        "attempts": [asdict(row) for row in store.attempts.list(run_id)],
    }
    return Work(
        [*_module("worker.jobs.reconcile"), root, artifacts.database_id, str(run_id)],
        RECONCILE_SECONDS,
        outcome,
        _environment(),
        given=json.dumps(known).encode(),
        tells_errors=True,
    )


def _module(name: str) -> list[str]:
    return [sys.executable, "-P", "-m", name]


def _why_not(what: str, seconds: float, end: JobEnd) -> str:
    """Why a child that works on artifacts has failed: as it says, or what can be seen of it."""
    said = end.text.decode("utf-8", "replace").strip()[-1000:]
    if end.too_slow:
        how = f"took longer than {seconds:g} seconds and was ended"
        why = "The disk below the artifact root is slow or hangs: look at it."
    elif said:
        return said
    else:
        how = f"died (exit code {end.returncode})"
        why = "The host may have run out of memory; its kernel's log says so."
    return f"{what} {how}; the rest is as it was. {why} It is tried again, but not for ever."


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return passed_on | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _found(end: JobEnd) -> Inspection:
    """What the child printed; a child that died says that the file is not safe to read."""
    try:
        found = json.loads(end.text)
    except ValueError:
        limit = f"took longer than {INSPECT_SECONDS:g} seconds"
        how = limit if end.too_slow else f"died (exit code {end.returncode})"
        message = (
            f"The inspection {how}: the data is damaged, or far from what its readers "
            "expect. Write it again, then register it again."
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
