"""The best checkpoint of the run whose whole state was taken over, made the new run's own.

The state that was carried names it as the best, so it has to be there for as long as the new run
is, whatever becomes of the other one.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.trainer.checkpoints import disk
from worker.trainer.checkpoints.format import (
    TornCheckpoint,
    quarantine,
    read_manifest,
    unfinished,
    unreadable,
    write_manifest,
)


@dataclass(frozen=True)
class InheritedBest:
    """It is whole, and hidden until the run has saved where it stands: an attempt that found
    nothing else of its own run would go back to it.
    """

    folder: Path
    temporary: Path
    told: Mapping[str, Any]
    """What the event of it says."""

    def show(self) -> None:
        """OSError."""
        if self.folder.exists():  # damaged, or it would be the best that is known
            quarantine(self.folder)
        disk.rename(self.temporary, self.folder)
        disk.sync_folder(self.folder.parent)

    def drop(self) -> None:
        """A better one has come, or nothing was saved."""
        shutil.rmtree(self.temporary, ignore_errors=True)


def inherit(source: Path, folder: Path, run_id: int, attempt: int) -> InheritedBest:
    """Bring `source` to where `folder` will be, a checkpoint of this run and attempt.

    Raises TornCheckpoint when it is not whole, or gone; TrainerError checkpoint_error when it could
    not be read, and disk_full. OSError.
    """
    manifest = read_manifest(source)
    for name, entry in manifest["files"].items():
        _require_whole(source / name, entry)
    body = {
        **manifest,
        "run_id": run_id,
        "attempt": attempt,
        "losses_bytes": 0,  # the new run's losses.csv has no row of those days
        "best_folder": None,
        "state": {**manifest["state"], "trained_seconds": 0.0},  # as at any restart
    }
    with unfinished(folder) as temporary:
        try:
            for name in manifest["files"]:
                _take(source / name, temporary / name)
        except FileNotFoundError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise TornCheckpoint("it was removed meanwhile") from error
        size = write_manifest(temporary, body)
    told = {
        **{name: body[name] for name in ("step", "epoch", "metrics")},
        "bytes": size + sum(int(entry["bytes"]) for entry in manifest["files"].values()),
        "of_run": manifest["run_id"],
    }
    return InheritedBest(folder, temporary, told)


def _require_whole(path: Path, entry: Mapping[str, Any]) -> None:
    """Its bytes are not kept, unlike those that a training goes on from."""
    try:
        with path.open("rb") as file:
            hashed = hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TornCheckpoint(f"{path.name} is gone") from error
    except OSError as error:
        raise unreadable(path.parent, error) from error
    if hashed != entry["sha256"]:
        raise TornCheckpoint(f"{path.name} is not as it was written")


def _take(source: Path, target: Path) -> None:
    """Files of checkpoints never change, so two may share one."""
    try:
        os.link(source, target)
    except OSError:  # it lies on another disk, or on one without links
        shutil.copyfile(source, target)
    disk.sync_file(target)
