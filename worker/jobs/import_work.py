"""An import's child: weights from elsewhere, read where nothing in them can do harm."""

import json
import resource
import sys

from app.container import available_memory
from app.settings import Settings
from app.store.weights.imported_rows import imported_path
from app.store.worker_records import JobRecord
from worker.jobs.job_work import JobEnd, JobOutcome, Work
from worker.launch.local import trainer_environment
from worker.start.preparation import confined, run_dir

IMPORT_SECONDS = 1800.0


def read_weights(job: JobRecord, settings: Settings) -> Work:
    """Copy a file's tensors into a checkpoint. ValueError when its path leads out of DATA_ROOT."""
    payload, root = job.payload, settings.artifact_root
    free = available_memory()
    order = {
        **{name: payload[name] for name in ("run_id", "key", "rename", "path")},
        "file": str(confined(payload["path"], settings.data_root)),
        "run_dir": str(run_dir(root, payload["run_id"])),
        "out": str(root / imported_path(payload["run_id"])),
        "most_bytes": free,
    }
    return Work(
        [sys.executable, "-P", "-m", "worker.trainer.weights.importing"],
        IMPORT_SECONDS,
        lambda end: _outcome(job, end),
        trainer_environment(settings.home, gpu=None, threads=1),
        given=json.dumps(order).encode(),
        limits={
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: free,
            resource.RLIMIT_CPU: int(IMPORT_SECONDS),
        },
    )


def _outcome(job: JobRecord, end: JobEnd) -> JobOutcome:
    path = job.payload["path"]
    try:
        answer = json.loads(end.text)
    except ValueError:
        limit = f"took longer than {IMPORT_SECONDS / 60:g} minutes"
        how = limit if end.too_slow else f"died (exit code {end.returncode})"
        told = (
            f"Nothing was imported: what read {path} {how}. The file is damaged, far from what "
            "torch.save writes, or too large for this host. Write it again, by "
            "torch.save(model.state_dict(), …) or as safetensors."
        )
        return JobOutcome(job, error=told)
    if "error" in answer:
        return JobOutcome(job, error=answer["error"])
    checkpoint = {**answer["checkpoint"], "path": imported_path(job.payload["run_id"])}
    return JobOutcome(job, result={**answer, "checkpoint": checkpoint})
