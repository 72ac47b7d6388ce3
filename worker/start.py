"""Starts an attempt: looks at what earlier ones left, guards it, writes spec.json, launches."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from app.errors import NotFound
from app.lifecycle import REASON_POLICY, Reason
from app.settings import Settings
from app.spec.run import RunSpec
from app.store.records import Lease, NewEvent, RestorePoint
from app.store.store import Store
from worker.attempt import AttemptDir
from worker.checkpoints import Reconciled, Unreadable, on_disk, reconcile, remove_leftovers
from worker.claim_guard import Place, guard_claim, memory_beside, new_findings
from worker.classify import Evidence, Verdict, classify, failed_here
from worker.devices import Devices
from worker.errand import WatchedRoot
from worker.launch.local import trainer_environment
from worker.launch.standby import Standby
from worker.orders import Launch
from worker.preparation import (
    NotFit,
    NotHere,
    attempt_document,
    parse_spec,
    restore_list,
    run_dir,
)
from worker.report import Report
from worker.run_folder import settle_in
from worker.slots import Slot, lock_is_free, take_lock

log = structlog.get_logger("stoker.worker")

# A run that only another worker can train, or this one later, waits for so long.
ELSEWHERE_SECONDS = 30.0
COMPLETE = frozenset(r for r, policy in REASON_POLICY.items() if policy.outcome == "succeed")


@dataclass(frozen=True)
class Workshop:
    """What all attempts of an agent share."""

    settings: Settings
    store: Store
    artifacts: WatchedRoot
    devices: Devices
    checkout: dict[str, Any]
    standby: Standby


@dataclass(frozen=True)
class Earlier:
    """What earlier attempts left: checkpoints that the store has yet to learn of.

    `completed`: the attempt that had trained to the end when its worker was lost, and what its
    trainer said last; None when there is none.
    """

    reconciled: Reconciled
    completed: tuple[int, list[dict[str, Any]]] | None
    warnings: list[NewEvent]


@dataclass(frozen=True)
class Prepared:
    """All that an attempt needs; `launch`: None where an earlier one had trained to the end, or
    with `failure`, where this one cannot be started.
    """

    spec: RunSpec
    earlier: Earlier
    launch: Launch | None = None
    on_gpu: bool = False
    warnings: Sequence[NewEvent] = ()
    failure: Verdict | None = None


def locks_are_free(shop: Workshop, lease: Lease, slot: Slot) -> bool:
    """Whether no process of an earlier attempt lives: it may be saving what is to be restored.

    NotHere while the artifact root is away: nothing is made in its place.
    """
    require_artifacts(shop)
    folder = run_dir(shop.settings.artifact_root, lease.run_id)
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    return lock_is_free(folder / "lock") and lock_is_free(slot.lock_path)


def look_back(shop: Workshop, lease: Lease) -> Earlier:
    """Read from disk, which is the truth, what earlier attempts of the run left there.

    NotHere when the artifact root was away meanwhile: nothing is gone then. Unreadable.
    """
    root = shop.settings.artifact_root
    folder = run_dir(root, lease.run_id)
    created_at = shop.store.runs.get(lease.run_id).created_at
    warnings = settle_in(folder, lease.run_id, lease.attempt, created_at)
    _clear_leftovers(folder)
    rows = shop.store.checkpoints.list(lease.run_id)
    reconciled = reconcile(rows, on_disk(folder), root)
    completed = _completed(shop.store, lease.run_id, folder)
    require_artifacts(shop)
    return Earlier(reconciled, completed, warnings)


def require_artifacts(shop: Workshop) -> None:
    """NotHere while the artifact root is away."""
    if not shop.artifacts.is_here():
        raise NotHere(
            Reason.slot_busy,
            "Requeued: the artifact root went away as the run was about to start. "
            "`stoker doctor` says why; the run goes on by itself when it is back.",
        )


def _completed(store: Store, run_id: int, folder: Path) -> tuple[int, list[dict[str, Any]]] | None:
    for attempt in reversed(store.attempts.list(run_id)):
        if attempt.reason is not Reason.worker_lost:
            continue  # the store was told how it ended
        words = AttemptDir(folder / f"attempt-{attempt.number}").last_words()
        if words and words[-1].get("reason") in COMPLETE:
            return attempt.number, words
    return None


def prepare(shop: Workshop, lease: Lease, slot: Slot, attempt: AttemptDir) -> Prepared | None:
    """Look back, judge the spec here, and make the attempt's folder; None while a process of an
    earlier attempt lives. It reads and writes on disks that may hang.

    NotFit when the run cannot train here, Unreadable when a checkpoint to restore cannot be read
    now, OSError when the host fails.
    """
    if not locks_are_free(shop, lease, slot):
        return None
    spec = parse_spec(lease)
    earlier = look_back(shop, lease)
    if earlier.completed is not None:
        return Prepared(spec, earlier)
    try:
        return _prepared(shop, lease, slot, attempt, spec, earlier)
    except (NotFit, NotFound, Unreadable, OSError) as error:
        return Prepared(spec, earlier, failure=why_not_started(shop, error))


def _prepared(
    shop: Workshop, lease: Lease, slot: Slot, attempt: AttemptDir, spec: RunSpec, earlier: Earlier
) -> Prepared:
    root = shop.settings.artifact_root
    folder = run_dir(root, lease.run_id)
    place = Place(shop.devices.as_offered(slot), len(shop.devices.slots))
    known = shop.store.runs.documents(lease.run_id).issues
    found = guard_claim(shop.settings, lease, spec, place, known)
    told = new_findings(found, known)
    restore = restore_list(root, lease)
    _require_nothing_saved(shop.store, lease, restore)
    document = attempt_document(
        shop.settings,
        lease,
        spec,
        slot,
        slots=len(shop.devices.slots),
        restore=restore,
        beside_bytes=memory_beside(shop.settings, lease, spec, place),
    )
    attempt.create(document)
    on_gpu = document["device"] != "cpu"
    uuid, threads = slot.uuid if on_gpu else None, document["threads"]
    environment = trainer_environment(shop.settings.home, gpu=uuid, threads=threads)
    launch = Launch(
        attempt_dir=attempt.path,
        slot_lock=slot.lock_path,
        run_lock=folder / "lock",
        grace_seconds=shop.settings.stop_grace_seconds,
        environment=environment,
    )
    warnings = [*told, *_warnings(lease.restore_points, restore)]
    return Prepared(spec, earlier, launch, on_gpu, warnings)


def verdict_of_completed(report: Report, attempt: int, last_words: list[dict[str, Any]]) -> Verdict:
    """An earlier attempt had trained to the end, but nobody could record it then."""
    report.take(last_words)
    verdict = classify(Evidence(end=report.end))
    message = (
        f"{verdict.message} Attempt {attempt} had come so far when its worker was lost; it was "
        "recorded later, and nothing was trained again."
    )
    report.outbox.log_text += f"{message}\n"
    return Verdict(verdict.reason, message)


def why_not_started(shop: Workshop, error: NotFit | NotFound | Unreadable | OSError) -> Verdict:
    """How an attempt ends that could not be started."""
    if isinstance(error, OSError):
        try:
            require_artifacts(shop)  # all of it has gone: that is why
        except NotHere as away:
            error = away
        else:
            return failed_here(error)
    if isinstance(error, NotHere):
        return Verdict(error.reason, error.message, ELSEWHERE_SECONDS, error.needs)
    if isinstance(error, NotFit):
        return Verdict(error.reason, error.message)
    if isinstance(error, Unreadable):
        return Verdict(Reason.checkpoint_error, str(error))
    return Verdict(Reason.checkpoint_error, error.detail)


def _require_nothing_saved(store: Store, lease: Lease, restore: Sequence[dict[str, Any]]) -> None:
    """NotFit when the store knows of checkpoints that are not there to go on from, of this run or
    of those it stems from: to begin anew is for a person to decide.
    """
    own = [] if any(one["own"] for one in restore) else [lease.run_id]
    others = [] if restore else [point.run_id for point in lease.restore_points]
    for run_id in (*own, *others):
        rows = [row for row in store.checkpoints.list(run_id) if row.state != "removing"]
        if rows:
            saved = f"{len(rows)} checkpoints, and none can be used any more: they are"
            if len(rows) == 1:
                saved = "1 checkpoint, which cannot be used any more: it is"
            raise NotFit(
                Reason.checkpoint_unusable,
                f"Run {run_id} has saved {saved} gone or damaged. No run starts from scratch by "
                f"itself. `stoker checkpoints {run_id}` says what is wrong. To begin anew: `stoker "
                f"restart {lease.run_id} --from scratch`.",
            )


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
