"""The write and load protocol of checkpoints: a folder is complete and right, or not there.

Write: temporary folder → files, fsync and hash of each → manifest last → fsync the folder
→ rename → fsync the parent; an attempt's first one has the names of all folders above it fsynced
too, up to the artifact root. Load: the manifest's checksum, then sizes and hashes of the very
bytes that are used. There is no `latest` link: what is newest is read from the folders.
"""

import errno
import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
from torch import Tensor

from app.lifecycle import Reason
from app.spec.imported import IMPORTED
from stoker.manifest import MANIFEST, BadManifest, manifest_bytes, parse_manifest, require_place
from worker.trainer.checkpoints import disk
from worker.trainer.checkpoints.finite import is_finite
from worker.trainer.checkpoints.manifest import require_facts
from worker.trainer.errors import Diverged, TrainerError

FORMAT: Final = 1
PARTS: Final = ("model", "optimizer", "state")
# Begins the names of trained weights in the state, where the model part has averaged ones.
TRAINED: Final = "trained."
# Tensors that every version of Stoker has saved.
OF_EVERY_STATE: Final = frozenset({"rng.cpu", "loss_sums"})

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Snapshot:
    """A training's state on the CPU; nothing of it changes while it is written.

    `body` is the manifest without its checksum and file list: `step`, `epoch`, `metrics`, ….
    """

    parts: Mapping[str, Tensors]
    body: Mapping[str, Any]

    @property
    def has_stale_statistics(self) -> bool:
        """Whether it was saved while batch norm's statistics were being updated, so that they are
        not those of the averaged weights.
        """
        average = self.body.get("average")
        return bool(average and average["statistics_due"])


class TornCheckpoint(Exception):
    """It was read, and is not a complete checkpoint, or not as it was written, or not of its place.

    Nothing else is torn: a checkpoint that could not be read may be whole.
    """


def unreadable(path: Path, error: OSError) -> TrainerError:
    """Of a read that failed, which proves nothing: the disk may be away, or descriptors used up."""
    return TrainerError(
        Reason.checkpoint_error,
        f"{path} could not be read ({error.strerror or error}). The checkpoint may be whole, so it "
        "stays as it is and nothing is trained from an earlier one; the run is tried again until "
        "it can be read. Look at the disk below the artifact root.",
    )


def publish(snapshot: Snapshot, folder: Path) -> int:
    """Write `folder`, which must not exist; returns its bytes. On return it survives a crash.

    Raises Diverged rather than keep weights or a loss that are not finite, and TrainerError
    disk_full; both leave earlier checkpoints as they are. OSError.
    """
    _require_finite(snapshot)
    with unfinished(folder) as temporary:
        files = {}
        for part, tensors in snapshot.parts.items():
            name = f"{part}.safetensors"
            files[name] = _write_tensors(temporary / name, tensors)
        body = {**snapshot.body, "format": FORMAT, "files": files}
        manifest_size = write_manifest(temporary, body)
        disk.rename(temporary, folder)
        disk.sync_folder(folder.parent)
    return manifest_size + sum(int(file["bytes"]) for file in files.values())


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """A new folder to write the checkpoint `folder` to, which is removed where that fails. OSError,
    TrainerError disk_full.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        if not folder.parent.exists():
            disk.make_folder(folder.parent)
            _sync_names_above(folder.parent)
        disk.make_folder(temporary)
        yield temporary
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise TrainerError(
            Reason.disk_full,
            f"The disk is full: checkpoint {folder.name} could not be written to {folder.parent}. "
            "Earlier checkpoints are intact. Free space there and restart the run from its latest.",
        ) from error


def write_manifest(folder: Path, body: Mapping[str, Any]) -> int:
    """The last file of a checkpoint, after which its folder is on the disk; its bytes. OSError."""
    data = manifest_bytes(body)
    disk.write_file(folder / MANIFEST, data)
    disk.sync_file(folder / MANIFEST)
    disk.sync_folder(folder)
    return len(data)


def _sync_names_above(folder: Path) -> None:
    """Up to the artifact root: ROOT/runs/<id>/attempt-<n>/checkpoints. The agent made the folders,
    and a name that nobody synced may be gone after a crash, with all that was saved below it.
    """
    for above in folder.parents[:4]:
        disk.sync_folder(above)


def _require_finite(snapshot: Snapshot) -> None:
    """Of the weights, and of the loss: whoever went on from it would end at the next log point."""
    step, state = snapshot.body["step"], snapshot.parts.get("state", {})
    trained = {name: tensor for name, tensor in state.items() if name.startswith(TRAINED)}
    weights = {**snapshot.parts["model"], **trained}
    broken = [name for name, tensor in weights.items() if not is_finite(tensor)]
    what = f"weights are not finite after step {step} ({', '.join(broken[:3])})"
    losses = state.get("loss_sums")  # weights that were brought have none
    if not broken and losses is not None and not is_finite(losses):
        what = f"training loss is not finite at or before step {step}"
    elif not broken:
        return
    raise Diverged(
        f"The {what}, so no checkpoint of it was kept.",
        "Lower optimizer.lr or set training.clip_grad_norm, and restart the run from its latest "
        "checkpoint.",
    )


def _write_tensors(path: Path, tensors: Tensors) -> dict[str, Any]:
    """Write a part; its size and hash."""
    disk.write_file(path, tensors)
    disk.sync_file(path)
    with path.open("rb") as file:
        hashed = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": hashed}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Raises TornCheckpoint; TrainerError checkpoint_error when it could not be read, and
    checkpoint_unusable when a newer version of Stoker wrote it.
    """
    try:
        document = parse_manifest(_read(folder / MANIFEST))
        require_place(folder, document)
        if isinstance(written := document.get("format"), int) and written != FORMAT:
            raise _of_another_format(folder, written)
        if IMPORTED not in document:  # weights alone, of no training
            require_facts(document)
    except BadManifest as error:
        raise TornCheckpoint(str(error)) from error
    return document


def _of_another_format(folder: Path, written: int) -> TrainerError:
    return TrainerError(
        Reason.checkpoint_unusable,
        f"The checkpoint {folder} has format {written}, and this version of Stoker reads format "
        f"{FORMAT}. Use the version that wrote it, or restart from scratch.",
    )


def load(folder: Path, parts: tuple[str, ...] = PARTS) -> Snapshot:
    """Read `parts` of a checkpoint, checked. Raises TornCheckpoint."""
    manifest = read_manifest(folder)
    loaded = {part: _load_part(folder, part, manifest) for part in parts}
    lacking = OF_EVERY_STATE - loaded["state"].keys() if "state" in parts else ()
    if lacking:
        raise TornCheckpoint(f"state.safetensors lacks {', '.join(sorted(lacking))}")
    return Snapshot(loaded, manifest)


def _load_part(folder: Path, part: str, manifest: Mapping[str, Any]) -> Tensors:
    name = f"{part}.safetensors"
    entry = manifest["files"].get(name)
    if entry is None:
        raise TornCheckpoint(f"{MANIFEST} does not name {name}")
    data = _read(folder / name)
    if len(data) != entry["bytes"]:
        raise TornCheckpoint(f"{name} has {len(data)} bytes instead of {entry['bytes']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise TornCheckpoint(f"{name} is not as it was written")
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise TornCheckpoint(f"{name} holds no tensors: {error}") from error


def _read(path: Path) -> bytes:
    """Raises TornCheckpoint where it is not there, TrainerError where that cannot be said."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        is_gone = not path.parent.is_dir()
        raise TornCheckpoint(f"{'the folder' if is_gone else path.name} is gone") from error
    except OSError as error:
        raise unreadable(path, error) from error


def quarantine(folder: Path) -> Path:
    """Rename a torn checkpoint so that nobody takes it for a good one; returns its new path.

    OSError.
    """
    target = folder.with_name(f"{folder.name}.torn")
    if target.exists():
        target = folder.with_name(f"{folder.name}.{time.time_ns()}.torn")
    folder.rename(target)
    return target
