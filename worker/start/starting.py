"""Starts an attempt: looks at what earlier ones left, guards it, writes spec.json, launches."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from app.errors import NotFound
from app.guard.facts import Facts
from app.lifecycle import REASON_POLICY, Reason
from app.settings import Settings
from app.spec.run import RunSpec
from app.spec.script import ScriptSpec
from app.spec.stored import AnySpec
from app.store.identity import this_process
from app.store.records import Lease, NewEvent, RestorePoint
from app.store.store import Store
from worker.agent.attempt_folder import AttemptDir
from worker.agent.beat_report import BeatReport
from worker.agent.checkpoint_folders import (
    Reconciled,
    Unreadable,
    on_disk,
    reconcile,
    remove_leftovers,
)
from worker.agent.classify import Evidence, Verdict, classify, failed_here
from worker.agent.devices import Devices
from worker.agent.errand import WatchedRoot
from worker.agent.slots import HeldSlots
from worker.agent.unsent import unsent_of
from worker.launch.local import LauncherProcess, start_launcher, trainer_environment
from worker.launch.locks import lock_is_free, take_lock
from worker.launch.standby import Standby
from worker.protocol import Launch
from worker.start.claim_guard import (
    ClaimPlace,
    facts_at_claim,
    guard_claim,
    memory_beside,
    new_findings,
)
from worker.start.preparation import (
    NotFit,
    NotHere,
    attempt_document,
    parse_spec,
    restore_list,
    run_dir,
    threads_of,
)
from worker.start.run_folder import settle_in
from worker.start.scripts import COMMAND, MARGIN_SECONDS, script_document, uses_gpu
from worker.start.shared_saves import shared_saves

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

    def launcher(self, spec: AnySpec, launch: Launch) -> LauncherProcess:
        """Of a trainer that may have been started ahead, or of a script's runner. OSError."""
        if isinstance(spec, ScriptSpec):
            return start_launcher(launch.environment, COMMAND)
        return self.standby.launcher(launch.environment)


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

    spec: AnySpec
    earlier: Earlier
    launch: Launch | None = None
    on_gpu: bool = False
    warnings: Sequence[NewEvent] = ()
    failure: Verdict | None = None
    facts: Facts | None = None
    """Of the place where it trains, as the guard saw it."""
    code: dict[str, Any] | None = None
    """Of a script, as it was when it was submitted."""


def locks_are_free(shop: Workshop, lease: Lease, slots: HeldSlots) -> bool:
    """Whether no process of an earlier attempt lives: it may be saving what is to be restored.

    NotHere while the artifact root is away: nothing is made in its place.
    """
    require_artifacts(shop)
    folder = run_dir(shop.settings.artifact_root, lease.run_id)
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    return all(map(lock_is_free, (folder / "lock", *slots.lock_paths)))


def look_back(shop: Workshop, lease: Lease) -> Earlier:
    """Read from disk, which is the truth, what earlier attempts of the run left there.

    NotHere when the artifact root was away meanwhile: nothing is gone then. Unreadable.
    """
    root = shop.settings.artifact_root
    folder = run_dir(root, lease.run_id)
    created_at = shop.store.runs.get(lease.run_id).created_at
    warnings = settle_in(folder, lease.run_id, lease.attempt, created_at)
    _clear_leftovers(folder)
    warnings += _send_unsent(shop, lease, folder)
    rows = shop.store.checkpoints.list(lease.run_id)
    reconciled = reconcile(rows, on_disk(folder), root)
    completed = _completed(shop.store, lease.run_id, folder)
    require_artifacts(shop)
    return Earlier(reconciled, completed, warnings)


def _send_unsent(shop: Workshop, lease: Lease, folder: Path) -> list[NewEvent]:
    """Stores what agents that were killed had not sent of earlier attempts. Returns a warning if
    the attempt before lies elsewhere.
    """
    if lease.attempt == 1:
        return []
    earlier = [one for one in shop.store.attempts.list(lease.run_id) if one.number < lease.attempt]
    for unsent in unsent_of(folder, earlier, shop.settings.artifact_root):
        shop.store.attempts.add_unsent(lease.run_id, unsent)
    if not earlier or earlier[-1].reason is not Reason.worker_lost:
        return []
    last = earlier[-1]
    if (folder / f"attempt-{last.number}").is_dir():
        return []
    message = (
        f"Attempt {last.number} ran on the worker {last.worker}, whose agent was lost. Its files "
        "are not in this worker's artifact root. If the agent had not sent the end of its log and "
        "curves, that end is missing here."
    )
    return [NewEvent("warning", time.time(), {"code": "attempt_elsewhere", "message": message})]


def require_artifacts(shop: Workshop) -> None:
    """NotHere while the artifact root is away; it waits for a disk that is slow."""
    if not shop.artifacts.is_here_in_the_end():
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


def prepare(shop: Workshop, lease: Lease, slots: HeldSlots, attempt: AttemptDir) -> Prepared | None:
    """Look back, judge the spec here, and make the attempt's folder; None while a process of an
    earlier attempt lives. It reads and writes on disks that may hang: in a thread of its own.

    NotHere when the artifact root is away, NotFit when the run cannot train here, Unreadable when a
    checkpoint to restore cannot be read now, OSError when the host fails.
    """
    try:
        if not locks_are_free(shop, lease, slots):
            return None
        spec = parse_spec(lease)
        earlier = look_back(shop, lease)
    except OSError:
        require_artifacts(shop)  # where all of it has gone, that is why
        raise
    if earlier.completed is not None:
        return Prepared(spec, earlier)
    try:
        if isinstance(spec, ScriptSpec):
            return _prepared_script(shop, lease, slots, attempt, spec, earlier)
        return _prepared(shop, lease, slots, attempt, spec, earlier)
    except (NotFit, NotFound, Unreadable, OSError) as error:
        return Prepared(spec, earlier, failure=_why_not_prepared(shop, error))


def _prepared(
    shop: Workshop,
    lease: Lease,
    slots: HeldSlots,
    attempt: AttemptDir,
    spec: RunSpec,
    earlier: Earlier,
) -> Prepared:
    root = shop.settings.artifact_root
    folder = run_dir(root, lease.run_id)
    place = ClaimPlace(shop.devices.as_offered(slots.first), shop.devices.cores_shared_by)
    known = shop.store.runs.documents(lease.run_id).issues
    facts = facts_at_claim(shop.store, shop.settings, lease, spec, place)
    found = guard_claim(shop.settings, lease, spec, facts, known)
    told = new_findings(found, known)
    restore = restore_list(root, lease)
    _require_nothing_saved(shop.store, lease, restore)
    _require_first_weights(shop.store, lease, spec, restore)
    document = attempt_document(
        shop.settings,
        lease,
        spec,
        slots.first,
        slots=shop.devices.cores_shared_by,
        restore=restore,
        beside_bytes=memory_beside(spec, facts),
    )
    attempt.create(document)
    on_gpu = document["device"] != "cpu"
    uuid, threads = slots.first.uuid if on_gpu else None, document["threads"]
    environment = trainer_environment(shop.settings.home, gpu=uuid, threads=threads)
    launch = Launch(
        attempt_dir=attempt.path,
        slot_locks=slots.lock_paths,
        run_lock=folder / "lock",
        grace_seconds=shop.settings.stop_grace_seconds,
        environment=environment,
    )
    warnings = [*told, *_warnings(lease.restore_points, restore)]
    return Prepared(spec, earlier, launch, on_gpu, warnings, facts=facts)


def _prepared_script(
    shop: Workshop,
    lease: Lease,
    slots: HeldSlots,
    attempt: AttemptDir,
    spec: ScriptSpec,
    earlier: Earlier,
) -> Prepared:
    settings = shop.settings
    restore = restore_list(settings.artifact_root, lease)
    _require_nothing_saved(shop.store, lease, restore)
    has_saved = bool(shop.store.checkpoints.list(lease.run_id))
    code = shop.store.runs.documents(lease.run_id).code
    document = script_document(
        settings, lease, spec, slots, restore=restore, has_saved=has_saved, code=code
    )
    attempt.create(document)
    threads = threads_of("auto", shop.devices.cores_shared_by)
    launch = Launch(
        attempt_dir=attempt.path,
        slot_locks=slots.lock_paths,
        run_lock=run_dir(settings.artifact_root, lease.run_id) / "lock",
        grace_seconds=spec.recipe.grace_seconds + MARGIN_SECONDS,
        environment=trainer_environment(settings.home, gpu=None, threads=threads),
    )
    warnings = _warnings(lease.restore_points, restore) if spec.recipe.resume else []
    beside = shop.store.leases.scripts_at(this_process().host) if spec.recipe.checkpoints else {}
    warnings += shared_saves(lease.run_id, spec, beside)
    return Prepared(spec, earlier, launch, uses_gpu(spec, slots), warnings, code=code)


def verdict_of_completed(
    report: BeatReport, attempt: int, last_words: list[dict[str, Any]]
) -> Verdict:
    """An earlier attempt had trained to the end, but nobody could record it then."""
    report.take(last_words)
    verdict = classify(Evidence(end=report.end))
    message = (
        f"{verdict.message} Attempt {attempt} had come so far when its worker was lost; it was "
        "recorded later, and nothing was trained again."
    )
    report.outbox.log_text += f"{message}\n"
    return Verdict(verdict.reason, message)


def _why_not_prepared(shop: Workshop, error: NotFit | NotFound | Unreadable | OSError) -> Verdict:
    if isinstance(error, OSError):
        try:
            require_artifacts(shop)
        except NotHere as away:
            error = away
    return why_not_started(error)


def why_not_started(error: NotFit | NotFound | Unreadable | OSError) -> Verdict:
    """How an attempt ends that could not be started."""
    if isinstance(error, OSError):
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
    goes_on = restore and restore[0]["carry"] != "init"
    stems_from = [point.run_id for point in lease.restore_points if point.carry != "init"]
    others = [] if goes_on else stems_from
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


def _require_first_weights(
    store: Store, lease: Lease, spec: RunSpec, restore: Sequence[dict[str, Any]]
) -> None:
    """NotFit when `init_from` names weights that are not there: no run begins without by itself."""
    if spec.init_from is None or restore:
        return
    point = next((one for one in lease.restore_points if one.carry == "init"), None)
    if point is None:
        why = "What init_from names was removed"
    else:
        source = store.runs.get(point.run_id)
        word = f"{source.state.value}, {source.reason.value}" if source.reason else source.state
        why = f"Run {point.run_id}, whose weights this one begins with, has no checkpoint ({word})"
    raise NotFit(
        Reason.checkpoint_unusable,
        f"{why}. Let that run save one (`stoker restart` it), then restart this one; or restart "
        f"this one without: `stoker restart {lease.run_id} --from scratch --set init_from=null`.",
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
