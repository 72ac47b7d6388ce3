"""What the store takes and gives about workers and their jobs: frozen records, as records.py."""

from dataclasses import dataclass, field
from typing import Literal

from app.store.records import Document

JobKind = Literal[
    "inspect_dataset", "remove_artifacts", "probe_step", "reconcile_checkpoints",
    "export_checkpoint", "import_checkpoint",
]  # fmt: skip
JobState = Literal["queued", "running", "done", "failed"]
WorkerState = Literal["alive", "draining", "gone", "lost"]


@dataclass(frozen=True)
class JobRecord:
    """Work for an agent's child. Payloads: inspect_dataset `{name, path}`; remove_artifacts
    `{run_id, paths: [relative to ARTIFACT_ROOT], checkpoint_id: int | null}`, of an export with its
    `export_id`; probe_step `{spec,
    fields, device: cpu | cuda, name, batch_size, evaluation_batch_size, profile: {key, model_bytes,
    sample_bytes}}`, with what was measured as its `result`; reconcile_checkpoints `{run_id,
    attempt}`, with what the store had yet to learn; export_checkpoint `{run_id, checkpoint_id,
    step, format}`, whose result is `{export_id}` once it is known; import_checkpoint the fields of
    WantedImport and `run_id`, whose result is `{run_id, checkpoint_id, left}` in the end.
    """

    id: int
    kind: JobKind
    payload: Document
    state: JobState
    error: str | None
    attempts: int
    worker_id: int | None
    created_at: float
    finished_at: float | None
    result: Document | None


@dataclass(frozen=True)
class NewWorker:
    """An agent that starts. `boot_id`, `pid` and `start_time`: see app.store.identity;
    `beat_seconds`: how often it beats (None: it does not say).
    """

    name: str
    host: str
    boot_id: str
    pid: int
    start_time: float
    version: str
    slots: list[Document] = field(default_factory=list)
    devices: list[Document] = field(default_factory=list)
    facts: Document = field(default_factory=dict)
    beat_seconds: float | None = None


@dataclass(frozen=True)
class WorkerPulse:
    """A live worker's beat counter and process, as one read saw them."""

    id: int
    beat: int
    host: str
    boot_id: str
    pid: int
    start_time: float
    beat_seconds: float | None


@dataclass(frozen=True)
class WorkerRecord:
    """An agent process; `slots` are `{name, device, run_id, waiting, host_memory_bytes}`, the last
    of them what the run's trainer has of the host's memory (null or absent: not known).
    """

    id: int
    name: str
    host: str
    boot_id: str
    pid: int
    start_time: float
    version: str
    beat_seconds: float | None
    state: WorkerState
    beat: int
    slots: list[Document]
    devices: list[Document]
    facts: Document
    started_at: float
    seen_at: float
