"""Starts an attempt: looks at what earlier ones left, guards it, writes spec.json, launches."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from app.lifecycle import REASON_POLICY, Reason
from app.settings import Settings
from app.spec.run import RunSpec
from app.store.records import Lease, NewCheckpoint, NewEvent, RestorePoint
from app.store.store import Store
from worker.attempt import AttemptDir
from worker.checkpoints import on_disk, reconcile, remove_leftovers
from worker.claim_guard import Place, guard_claim, new_findings
from worker.devices import Devices
from worker.launch.local import Launched, trainer_environment
from worker.launch.standby import Standby
from worker.orders import Launch
from worker.preparation import attempt_document, restore_list, run_dir
from worker.slots import Slot, lock_is_free, take_lock

log = structlog.get_logger("stoker.worker")

COMPLETE = frozenset(r for r, policy in REASON_POLICY.items() if policy.outcome == "succeed")


@dataclass(frozen=True)
class Workshop:
    """What all attempts of an agent share."""

    settings: Settings
    store: Store
    devices: Devices
    checkout: dict[str, Any]
    standby: Standby


@dataclass(frozen=True)
class Earlier:
    """What earlier attempts left: checkpoints that the store has yet to learn of, and to forget.

    `completed`: the attempt that had trained to the end when its worker was lost, and what its
    trainer said last; None when there is none.
    """

    adopted: list[NewCheckpoint]
    gone: list[str]
    completed: tuple[int, list[dict[str, Any]]] | None


@dataclass(frozen=True)
class Started:
    """A launched attempt."""

    launched: Launched
    on_gpu: bool
    warnings: list[NewEvent]


def locks_are_free(shop: Workshop, lease: Lease, slot: Slot) -> bool:
    """Whether no process of an earlier attempt lives: it may be saving what is to be restored."""
    folder = run_dir(shop.settings.artifact_root, lease.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    return lock_is_free(folder / "lock") and lock_is_free(slot.lock_path)


def look_back(shop: Workshop, lease: Lease) -> Earlier:
    """Read from disk, which is the truth, what earlier attempts of the run left there."""
    root = shop.settings.artifact_root
    folder = run_dir(root, lease.run_id)
    _clear_leftovers(folder)
    rows = shop.store.checkpoints.list(lease.run_id)
    adopted, gone = reconcile(rows, on_disk(folder), root)
    return Earlier(adopted, gone, _completed(shop.store, lease.run_id, folder))


def _completed(store: Store, run_id: int, folder: Path) -> tuple[int, list[dict[str, Any]]] | None:
    for attempt in reversed(store.attempts.list(run_id)):
        if attempt.reason is not Reason.worker_lost:
            continue  # the store was told how it ended
        words = AttemptDir(folder / f"attempt-{attempt.number}").last_words()
        if words and words[-1].get("reason") in COMPLETE:
            return attempt.number, words
    return None


def start_attempt(
    shop: Workshop, lease: Lease, spec: RunSpec, slot: Slot, attempt: AttemptDir
) -> Started:
    """Launch the attempt. NotFit when the run cannot train here, OSError when the host fails."""
    root = shop.settings.artifact_root
    folder = run_dir(root, lease.run_id)
    gpu = shop.devices.gpu_of(slot) or slot.last_sample if slot.gpu is not None else None
    known = shop.store.runs.documents(lease.run_id).issues
    found = guard_claim(shop.settings, lease, spec, Place(gpu, len(shop.devices.slots)), known)
    told = new_findings(found, known)
    restore = restore_list(root, lease)
    document = attempt_document(
        shop.settings, lease, spec, slot, slots=len(shop.devices.slots), restore=restore
    )
    attempt.create(document)
    on_gpu = document["device"] != "cpu"
    uuid, threads = slot.uuid if on_gpu else None, document["threads"]
    environment = trainer_environment(shop.settings.home, gpu=uuid, threads=threads)
    launched = shop.standby.launcher(environment)
    launched.begin(
        Launch(
            attempt_dir=attempt.path,
            slot_lock=slot.lock_path,
            run_lock=folder / "lock",
            grace_seconds=shop.settings.stop_grace_seconds,
            environment=environment,
        )
    )
    return Started(launched, on_gpu, [*told, *_warnings(lease.restore_points, restore)])


def _clear_leftovers(folder: Path) -> None:
    """Under the run's lock: who holds it may be saving what looks like a leftover."""
    lock = take_lock(folder / "lock")
    if lock is None:
        return
    try:
        remove_leftovers(folder)
    except OSError as error:
        log.warning("leftovers of earlier attempts stay", folder=str(folder), why=str(error))
    finally:
        os.close(lock)


def _warnings(points: Sequence[RestorePoint], restore: Sequence[dict[str, Any]]) -> list[NewEvent]:
    if restore or not points:
        return []
    parent = points[0].run_id
    message = f"Run {parent}, which this one goes on from, has no checkpoint: it begins anew."
    return [NewEvent("warning", time.time(), {"code": "nothing_to_restore", "message": message})]
