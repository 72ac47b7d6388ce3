"""Checkpoints on disk, which is the truth: which are there, which to restore, which to remove."""

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.spec.training import Checkpointing
from app.store.records import CheckpointRecord, NewCheckpoint

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
            epoch=int(self.manifest.get("epoch") or 0),
            path=str(self.path.relative_to(artifact_root)),
            bytes=self.bytes,
            metrics=self.manifest.get("metrics") or {},
            created_at=self.written_at,
        )


def on_disk(run_dir: Path) -> list[DiskCheckpoint]:
    """All finished checkpoints of a run, the one with most progress first."""
    found = [
        checkpoint
        for attempt_dir in run_dir.glob("attempt-*")
        if (attempt := ATTEMPT_DIR.fullmatch(attempt_dir.name))
        for path in attempt_dir.glob("checkpoints/step-*")
        if (checkpoint := read_checkpoint(path, int(attempt[1]))) is not None
    ]
    return sorted(found, key=lambda c: (c.step, c.attempt), reverse=True)


def read_checkpoint(path: Path, attempt: int) -> DiskCheckpoint | None:
    """The checkpoint in a folder; None when it is not a finished one."""
    step = STEP_DIR.fullmatch(path.name)
    if step is None:
        return None
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        written_at = (path / "manifest.json").stat().st_mtime
        size = sum(file.stat().st_size for file in path.iterdir())
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict):
        return None
    return DiskCheckpoint(path, attempt, int(step[1]), manifest, size, written_at)


def reconcile(
    rows: Iterable[CheckpointRecord], disk: Iterable[DiskCheckpoint], artifact_root: Path
) -> tuple[list[NewCheckpoint], list[str]]:
    """Rows to add for folders without one, and paths of rows whose folder is gone."""
    known = {row.path for row in rows}
    present = {str(checkpoint.path.relative_to(artifact_root)): checkpoint for checkpoint in disk}
    adopted = [present[path].as_row(artifact_root) for path in sorted(present.keys() - known)]
    return adopted, sorted(known - present.keys())


def beyond_retention(
    rows: Sequence[CheckpointRecord], policy: Checkpointing
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
    (path / "manifest.json").unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def remove_leftovers(run_dir: Path) -> None:
    """Remove interrupted saves, and all but the newest torn checkpoint, of a run nobody trains."""
    for path in run_dir.glob("attempt-*/checkpoints/.step-*.tmp"):
        shutil.rmtree(path)
    torn = sorted(run_dir.glob("attempt-*/checkpoints/*.torn"), key=lambda p: p.stat().st_mtime)
    for path in torn[:-1]:
        shutil.rmtree(path)
