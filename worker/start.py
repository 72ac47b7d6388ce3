"""Starts an attempt: guards it, reads its checkpoints from disk, writes spec.json, launches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.settings import Settings
from app.spec.run import RunSpec
from app.store.records import Lease, NewCheckpoint
from app.store.store import Store
from worker.attempt import AttemptDir
from worker.checkpoints import on_disk, reconcile
from worker.launch.local import Launch, Launched, launch, trainer_environment
from worker.preparation import attempt_document, parse_spec, require_fit, restore_list, run_dir
from worker.slots import Slot, lock_is_free
from worker.telemetry import GpuSample


@dataclass(frozen=True)
class Workshop:
    """What all attempts of an agent share."""

    settings: Settings
    store: Store
    slots: int
    gpu: Callable[[Slot], GpuSample | None]
    trainer_command: Sequence[str] | None = None


@dataclass(frozen=True)
class Started:
    """A launched attempt; checkpoints that the store has yet to learn of, and to forget."""

    launched: Launched
    spec: RunSpec
    adopted: list[NewCheckpoint]
    gone: list[str]


def locks_are_free(shop: Workshop, lease: Lease, slot: Slot) -> bool:
    """Whether no process of an earlier attempt lives: it may be saving what is to be restored."""
    folder = run_dir(shop.settings.artifact_root, lease.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    return lock_is_free(folder / "lock") and lock_is_free(slot.lock_path)


def start_attempt(shop: Workshop, lease: Lease, slot: Slot, attempt: AttemptDir) -> Started:
    """Launch the attempt. NotFit when the run cannot train here, OSError when the host fails."""
    root = shop.settings.artifact_root
    folder = run_dir(root, lease.run_id)
    spec = parse_spec(lease)
    require_fit(lease, spec, slot, shop.gpu(slot))
    rows = shop.store.checkpoints.list(lease.run_id)
    adopted, gone = reconcile(rows, on_disk(folder), root)
    restore = restore_list(root, lease)
    document = attempt_document(shop.settings, lease, spec, slot, slots=shop.slots, restore=restore)
    attempt.create(document)
    uuid = slot.uuid if document["device"] != "cpu" else None
    launched = launch(
        Launch(
            attempt_dir=attempt.path,
            slot_lock=slot.lock_path,
            run_lock=folder / "lock",
            grace_seconds=shop.settings.stop_grace_seconds,
            command=shop.trainer_command,
            environment=trainer_environment(
                shop.settings.home, gpu=uuid, threads=document["threads"]
            ),
        )
    )
    return Started(launched, spec, adopted, gone)
