"""An export's child: a checkpoint in another format, measured on the CPU beside the trainings."""

import json
import resource
import signal
import sys

from app.container import available_memory
from app.datacache import cache_folder
from app.settings import Settings
from app.store.store import Store
from app.store.weights.export_rows import export_path
from app.store.worker_records import JobRecord
from worker.agent.devices import Devices
from worker.jobs.job_work import JobEnd, JobOutcome, Work
from worker.launch.local import trainer_environment
from worker.start.preparation import NotFit, confined, dataset_document, run_dir, threads_of

# The whole validation part goes through the model three times, on a host that may be busy.
EXPORT_SECONDS = 3600.0


def export(job: JobRecord, settings: Settings, store: Store, devices: Devices) -> Work:
    """Write it, check it, measure it. ValueError, StokerError where there is nothing to read."""
    payload, root = job.payload, settings.artifact_root
    path, spec, datasets = store.exports.what_to_read(payload["checkpoint_id"])
    threads = threads_of("auto", devices.cores_shared_by)
    try:
        data = {
            name: dataset_document(record, settings.data_root) for name, record in datasets.items()
        }
    except NotFit as error:
        raise ValueError(error.message.rstrip(".")) from None
    order = {
        **payload,
        "checkpoint": str(confined(path, root)),
        "out": str(root / export_path(payload)),
        "run_dir": str(run_dir(root, payload["run_id"])),
        "spec": spec,
        "datasets": data,
        "threads": threads,
        "data_cache": {
            "folder": str(cache_folder(settings.home)),
            "most_bytes": settings.data_cache_bytes,
        },
    }
    return Work(
        [sys.executable, "-P", "-m", "worker.trainer.weights.exporting"],
        EXPORT_SECONDS,
        lambda end: _outcome(job, end),
        trainer_environment(settings.home, gpu=None, threads=threads),
        given=json.dumps(order).encode(),
        limits={resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: available_memory()},
    )


def _outcome(job: JobRecord, end: JobEnd) -> JobOutcome:
    try:
        answer = json.loads(end.text)
    except ValueError:
        if end.too_slow:
            how = f"did not end within {EXPORT_SECONDS / 60:g} minutes, and was ended"
            advice = "Fewer batches are measured where evaluation.max_batches says so."
        elif end.returncode == -signal.SIGKILL:
            how = "was killed, most likely for want of memory"
            advice = "Ask again when fewer runs train on this host."
        else:
            how = f"died (exit code {end.returncode})"
            advice = "The host may be short of memory; ask again when fewer runs train on it."
        return JobOutcome(job, error=f"The export {how}. Nothing was kept of it. {advice}")
    if "error" in answer:
        return JobOutcome(job, error=answer["error"])
    return JobOutcome(job, result=answer)
