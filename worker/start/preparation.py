"""From a lease to spec.json: data paths, device, threads, what to restore."""

from pathlib import Path
from typing import Any, Literal

from app.container import usable_cores
from app.datacache import cache_folder
from app.lifecycle import Reason
from app.planning.arithmetic import threads_of_slot
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.settings import Settings
from app.spec.run import RunSpec
from app.spec.script import is_script
from app.spec.stored import AnySpec, read_stored, read_stored_script
from app.store.records import DatasetRecord, Lease
from worker.agent.checkpoint_folders import on_disk
from worker.agent.slots import AgentSlot

Document = dict[str, Any]


class NotFit(Exception):
    """The run cannot start on this host; ends the attempt with `reason` before a trainer does."""

    def __init__(self, reason: Reason, message: str, needs: Requirements = NOTHING_KNOWN) -> None:
        """`needs`: what was found to be needed at least, for the next claim."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.needs = needs


class NotHere(NotFit):
    """The run cannot train on this slot, but on another host's, or later, it could."""


def run_dir(artifact_root: Path, run_id: int) -> Path:
    return artifact_root / "runs" / str(run_id)


def parse_spec(lease: Lease) -> AnySpec:
    """The lease's spec as a model; NotFit when this version cannot read it."""
    try:
        return read_stored_script(lease.spec) if is_script(lease.spec) else read_stored(lease.spec)
    except ValueError as error:
        raise NotFit(
            Reason.spec_error,
            f"This version of the worker cannot read the run's spec ({error}); submit it again.",
        ) from None


def confined(path: str, root: Path) -> Path:
    """The absolute path below `root`, symbolic links resolved; ValueError when it leaves it."""
    try:
        whole = (root / path).resolve()
    except (RuntimeError, OSError) as error:  # RuntimeError: until Python 3.13, links in a circle
        why = error.strerror if isinstance(error, OSError) else "its links lead in a circle"
        raise ValueError(f"{path} cannot be followed: {why}") from None
    if not whole.is_relative_to(root.resolve()):
        raise ValueError(f"{path} leads out of {root}")
    return whole


def attempt_document(
    settings: Settings,
    lease: Lease,
    spec: RunSpec,
    slot: AgentSlot,
    *,
    slots: int,
    restore: list[Document],
    beside_bytes: int | None = None,
) -> Document:
    """The content of spec.json; `beside_bytes`: what the memory plan has beside the data."""
    on_gpu = slot.gpu is not None and spec.runtime.device != "cpu"
    return {
        "run_id": lease.run_id,
        "attempt": lease.attempt,
        "spec": lease.spec,
        "datasets": {
            record.name: dataset_document(record, settings.data_root)
            for record in lease.datasets.values()
        },
        "device": "cuda:0" if on_gpu else "cpu",  # the only GPU that the trainer can see
        "threads": threads_of(spec.runtime.threads, slots),
        "restore": restore,
        "memory_rung": lease.memory_rung,
        "rollback": lease.rollback,
        "memory_beside_data": beside_bytes,
        "data_cache": {
            "folder": str(cache_folder(settings.home)),
            "most_bytes": settings.data_cache_bytes,
        },
        "run_dir": str(run_dir(settings.artifact_root, lease.run_id)),
    }


def threads_of(wanted: int | Literal["auto"], slots: int) -> int:
    """`runtime.threads`, with auto as an even share of the cores."""
    return threads_of_slot(usable_cores(), slots) if wanted == "auto" else wanted


def dataset_document(record: DatasetRecord, data_root: Path) -> Document:
    """What a trainer is told of a dataset. NotFit."""
    try:
        path = confined(record.path, data_root)
    except ValueError as error:
        raise NotFit(
            Reason.data_error,
            f"The dataset {record.name!r} cannot be read: {error}. Move the file below the data "
            "root, or register it again.",
        ) from None
    return {
        "path": str(path),
        "fingerprint": record.fingerprint,
        "samples": record.samples,
        "fields": record.fields,
    }


def restore_list(artifact_root: Path, lease: Lease) -> list[Document]:
    """Checkpoints to try, newest first: the run's own; where it has none, those of the run it goes
    on from: the first of the lease's restore points that has any. Only the disk knows. Unreadable.
    """
    own = on_disk(run_dir(artifact_root, lease.run_id)).good
    if own:
        return [{"path": str(one.path), "carry": "full", "own": True} for one in own]
    for point in lease.restore_points:
        if point.path is not None:
            paths = [artifact_root / point.path]
        else:
            found = on_disk(run_dir(artifact_root, point.run_id))
            paths = [one.path for one in found.good]
        if paths:
            return [{"path": str(p), "carry": point.carry, "own": False} for p in paths]
    return []
