"""Store records as the contract's documents."""

from typing import Any

from app.lifecycle import TERMINAL, allowed_actions, derive_status
from app.store.records import (
    AttemptRecord,
    CheckpointRecord,
    DatasetRecord,
    RunRecord,
)
from app.store.weights.export_rows import ExportRecord
from app.store.worker_records import JobRecord, WorkerRecord
from stoker.models.records import Attempt, Checkpoint, Dataset, Worker
from stoker.models.runs import Carry, Environment, Progress, Result, Run
from stoker.models.weights import Export, ExportFacts, Job

RUN_LINKS = ("spec", "events", "logs", "metrics", "attempts", "checkpoints", "exports")


def status_of(run: RunRecord) -> str:
    """The derived status."""
    return derive_status(
        run.state,
        run.intent,
        phase=(run.progress or {}).get("phase"),
        waits_for_parent=run.waits_for is not None,
        waits_for_memory=run.waiting is not None and run.waiting.for_memory,
        retrying=run.retry_at is not None,
    )


def run_document(run: RunRecord) -> Run:
    """A run as the API shows it."""
    here = f"/runs/{run.id}"
    links = {"self": here, **{name: f"{here}/{name}" for name in RUN_LINKS}}
    if run.parent_id is not None:
        links["parent"] = f"/runs/{run.parent_id}"
    return Run(
        **{name: getattr(run, name) for name in _PLAIN},
        status=status_of(run),
        message=run.message if run.waiting is None else run.waiting.why,
        child_ids=list(run.child_ids),
        environment=_of(Environment, run.environment),
        progress=_of(Progress, run.progress),
        result=_of(Result, _with_caveats(run, _result(run))),
        carry=_of(Carry, run.carry),
        differences=None if run.carry is None else run.carry.get("differences"),
        allowed_actions=allowed_actions(run.state, run.intent),
        links=links,
    )


def _result(run: RunRecord) -> dict[str, Any] | None:
    """What its trainer said at the end; of a run that ended without a word, as one that was killed,
    what was known of it last.
    """
    if run.result is not None or run.state not in TERMINAL or not run.progress:
        return run.result
    told = run.progress
    named = {"step": told.get("step"), "epoch": told.get("epoch"), "train_loss": told.get("loss")}
    last = {name: value for name, value in named.items() if value is not None}
    return {"last": last, "best": run.progress.get("best"), "test": None}


def _with_caveats(run: RunRecord, result: dict[str, Any] | None) -> dict[str, Any] | None:
    accepted = [CAVEATS[code] for code in run.accepted_risks if code in CAVEATS]
    if result is None:
        return None
    return {**result, "caveats": [*(result.get("caveats") or ()), *accepted]}


# Sentences for the result of a run that accepted these risks.
CAVEATS = {
    "learning.weights_saw_held_out": "The run began with weights that were trained on samples it "
    "holds out (accepted: learning.weights_saw_held_out), so its scores may look better than they "
    "are."
}
_PLAIN = (
    "id", "name", "notes", "labels", "priority", "recipe", "mode", "dataset", "state", "intent",
    "reason", "version", "waits_for", "init_from_run", "parent_id", "attempt", "worker", "devices",
    "created_at", "created_by", "started_at", "finished_at", "retry_at", "diagnosis",
    "accepted_risks", "argv",
)  # fmt: skip


def _of(model: Any, document: dict[str, Any] | None) -> Any:
    return None if document is None else model.model_validate(document)


def checkpoint_document(record: CheckpointRecord) -> Checkpoint:
    """A checkpoint with the paths of its run and its files."""
    here = f"/checkpoints/{record.id}"
    links = {"self": here, "download": f"{here}/download", "run": f"/runs/{record.run_id}"}
    fields = {name: getattr(record, name) for name in Checkpoint.model_fields if name != "links"}
    return Checkpoint(**fields, links=links)


def export_document(record: ExportRecord) -> Export:
    """An export with the paths of its run and its files."""
    here = f"/exports/{record.id}"
    links = {"self": here, "download": f"{here}/download", "run": f"/runs/{record.run_id}"}
    names = Export.model_fields.keys() - {"links", "facts"}
    fields = {name: getattr(record, name) for name in names}
    return Export(**fields, facts=ExportFacts.model_validate(record.facts), links=links)


def job_document(record: JobRecord) -> Job:
    """A job with the paths of what it has made."""
    links, made = {"self": f"/jobs/{record.id}"}, record.result or {}
    for name in ("export", "run", "checkpoint"):
        if (known := made.get(f"{name}_id")) is not None:
            links[name] = f"/{name}s/{known}"
    fields = {name: getattr(record, name) for name in Job.model_fields if name != "links"}
    return Job(**fields, links=links)


def attempt_document(record: AttemptRecord) -> Attempt:
    return Attempt.model_validate(record)


def dataset_document(record: DatasetRecord) -> Dataset:
    return Dataset.model_validate(record)


def worker_document(record: WorkerRecord) -> Worker:
    return Worker.model_validate(record)
