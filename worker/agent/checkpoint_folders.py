"""Checkpoints on disk, which is the truth: which are there, which to restore, which to remove."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from app.spec.script import ScriptCheckpoints
from app.spec.training import Checkpointing
from app.store.records import CheckpointRecord, DamagedCheckpoint, NewCheckpoint
from stoker.manifest import MANIFEST, BadManifest, parse_manifest, require_place
from worker.regular_files import NotReadable, open_regular, read_regular

log = structlog.get_logger("stoker.worker")

MOST_MANIFEST_BYTES = 64 * 2**20
STEP_DIR = re.compile(r"step-(\d+)")
ATTEMPT_DIR = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True)
class DiskCheckpoint:
    """A finished checkpoint folder: the manifest is written last, so its presence is the proof."""

    path: Path
    attempt: int
    step: int
    manifest: dict[str, Any]
    bytes: int
    written_at: float

    def as_row(self, artifact_root: Path) -> NewCheckpoint:
        """What the store is told about it."""
        return NewCheckpoint(
            step=self.step,
            epoch=self.manifest.get("epoch", 0),
            path=str(self.path.relative_to(artifact_root)),
            bytes=self.bytes,
            metrics=self.manifest.get("metrics", {}),
            created_at=self.written_at,
        )


@dataclass(frozen=True)
class Found:
    """What a run's folders hold: good checkpoints, the one with most progress first, and the
    folders of damaged ones, each with why it cannot be used.
    """

    good: list[DiskCheckpoint]
    damaged: list[tuple[Path, str]]


class Unreadable(Exception):
    """A folder could not be read. That is no proof of anything: what is in it may be whole."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{error.filename or path} could not be read ({error.strerror or error}). The run's "
            "checkpoints may be whole, so they stay as they are and nothing begins anew; the run "
            "is tried again until they can be read. Look at the disk below the artifact root."
        )


def on_disk(run_dir: Path) -> Found:
    """All finished checkpoints of a run. Raises Unreadable."""
    found = Found([], [])
    try:
        for attempt_dir in _entries(run_dir):
            attempt = ATTEMPT_DIR.fullmatch(attempt_dir.name)
            for path in _entries(attempt_dir / "checkpoints") if attempt else ():
                step = STEP_DIR.fullmatch(path.name)
                if attempt and step:
                    _look_at(path, int(attempt[1]), int(step[1]), found)
    except OSError as error:
        raise Unreadable(run_dir, error) from error
    found.good.sort(key=lambda c: (c.step, c.attempt), reverse=True)
    return found


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder; nothing in one that is not there. OSError, unlike `Path.glob`."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _look_at(path: Path, attempt: int, step: int, found: Found) -> None:
    """Note whether a folder holds a finished checkpoint of its place: the manifest is written last,
    so its presence is the proof. OSError when that cannot be said.
    """
    try:
        manifest = parse_manifest(read_regular(path / MANIFEST, MOST_MANIFEST_BYTES))
        require_place(path, manifest)
        written_at = (path / MANIFEST).stat().st_mtime
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    except NotReadable as error:
        found.damaged.append((path, str(error)))
        return
    except (FileNotFoundError, NotADirectoryError):
        why = "it is a link that leads nowhere" if path.is_symlink() else "its manifest is gone"
        found.damaged.append((path, why))
        return
    except BadManifest as error:
        found.damaged.append((path, str(error)))
        return
    found.good.append(DiskCheckpoint(path, attempt, step, manifest, size, written_at))


@dataclass(frozen=True)
class Reconciled:
    """What the store has yet to learn: folders without a usable row, rows without a usable folder,
    and removals that are done.
    """

    adopted: list[NewCheckpoint]
    damaged: list[DamagedCheckpoint]
    gone: list[str]


def reconcile(rows: Iterable[CheckpointRecord], found: Found, artifact_root: Path) -> Reconciled:
    """Compare what the store knows of a run with what lies on disk, which is the truth.

    One that was found damaged is used again only when its files are whole, which takes reading all
    of it. Raises Unreadable.
    """
    known = {row.path: row.state for row in rows}
    good = {str(one.path.relative_to(artifact_root)): one for one in found.good}
    why = {str(path.relative_to(artifact_root)): said for path, said in found.damaged}
    adopted = [
        good[path].as_row(artifact_root)
        for path in sorted(good)
        if path not in known or (known[path] == "damaged" and _is_whole(good[path]))
    ]
    saved = {path for path, state in known.items() if state == "saved"}
    damaged = {path: why.get(path, "its folder is gone") for path in saved - good.keys()}
    damaged |= {path: said for path, said in why.items() if path not in known}
    gone = {p for p, state in known.items() if state == "removing"} - good.keys() - why.keys()
    return Reconciled(
        adopted, [DamagedCheckpoint(*item) for item in sorted(damaged.items())], sorted(gone)
    )


def _is_whole(checkpoint: DiskCheckpoint) -> bool:
    """Whether its files are of the sizes and hashes that its manifest names. Raises Unreadable."""
    files = checkpoint.manifest["files"]
    try:
        return all(_is_as_written(checkpoint.path / name, files[name]) for name in files)
    except OSError as error:
        raise Unreadable(checkpoint.path, error) from error


def _is_as_written(path: Path, entry: dict[str, Any]) -> bool:
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size != entry["bytes"]:
                return False
            return hashlib.file_digest(file, "sha256").hexdigest() == str(entry["sha256"])
    except (FileNotFoundError, NotReadable):
        return False


def beyond_retention(
    rows: Sequence[CheckpointRecord], policy: Checkpointing | ScriptCheckpoints
) -> list[CheckpointRecord]:
    """The checkpoints that neither keep_last nor keep_best nor a pin protects.

    The best is chosen as the store chooses it: of equally good ones the first.
    """
    newest = sorted(rows, key=lambda row: (row.step, row.attempt), reverse=True)
    sign = 1 if policy.mode == "min" else -1
    judged = [row for row in newest if row.metrics.get(policy.monitor) is not None]
    best = sorted(judged, key=lambda row: (sign * row.metrics[policy.monitor], row.step, row.id))
    kept = {row.id for row in (*newest[: policy.keep_last], *best[: policy.keep_best])}
    return [row for row in newest if row.id not in kept and not row.pinned]


def remove(path: Path) -> None:
    """Remove a checkpoint folder, the manifest first, since without it it is no checkpoint."""
    (path / MANIFEST).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def remove_all(artifact_root: Path, paths: Sequence[str]) -> list[str]:
    """Remove checkpoints; those that are gone. What could not be removed is tried again."""
    removed = []
    for path in paths:
        try:
            remove(artifact_root / path)
        except OSError as error:
            log.warning("an old checkpoint could not be removed", path=path, why=str(error))
        else:
            removed.append(path)
    return removed


def remove_leftovers(run_dir: Path) -> None:
    """Remove interrupted saves of a run that nobody trains. Damaged checkpoints stay: as long as
    the run is not deleted, somebody may want what can be read of them.
    """
    for path in run_dir.glob("attempt-*/checkpoints/.step-*.tmp"):
        shutil.rmtree(path)
