"""An entry of the data cache: tensors that follow from facts, on disk for the next run.

An entry is read whole, and used only if its hash is that of its manifest.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Self

import safetensors
import safetensors.torch
from torch import Tensor

from app.datacache import MANIFEST, TABLES, EntryLock, trim
from worker.trainer.attempt import DataCache, TrainerAttempt
from worker.trainer.checkpoints.whole_file import whole_folder
from worker.trainer.data.dataset import DataSet
from worker.trainer.recipes.base import Task

logger = logging.getLogger(__name__)

Tables = dict[str, Tensor]


def facts_of(task: Task, attempt: TrainerAttempt, data: DataSet) -> dict[str, Any]:
    """The recipe and the data that every entry of a run follows from."""
    wanted = attempt.spec.data
    return {
        "recipe": task.recipe.kind,
        "version": task.recipe.version,
        "datasets": {name: one["fingerprint"] for name, one in attempt.datasets.items()},
        "data": wanted.model_dump(mode="json", include={"dataset", "inputs", "targets", "split"}),
        "fields": {name: [list(f.shape), str(f.dtype)] for name, f in data.fields.items()},
    }


class CacheEntry:
    """The entry of these facts. `read` and `write` do nothing unless its lock is held."""

    def __init__(
        self, cache: DataCache, facts: Mapping[str, Any], warn: Callable[[str, str], None]
    ) -> None:
        """`warn` takes the code of a warning and its sentence."""
        self._cache, self._facts, self._warn = cache, facts, warn
        self._key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        self._folder = cache.folder / self._key
        self._lock: EntryLock | None = None
        self._is_held = False
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        try:
            lock = EntryLock(self._cache.folder, self._key)
        except OSError as error:
            self._warn_of(error)
        else:
            self._lock = self._resources.enter_context(lock)
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_held = False
        self._resources.close()

    def take(self) -> bool:
        """Takes the lock without waiting. Returns False while another trainer holds it."""
        if self._lock is None:
            return True  # the cache cannot be used, so there is nothing to wait for
        self._is_held = self._lock.take()
        return self._is_held

    def read(self) -> Tables | None:
        """Returns the tensors of an entry that is whole; one that is not is removed."""
        if not self._is_held or not self._folder.exists():
            return None
        try:
            manifest = json.loads((self._folder / MANIFEST).read_bytes())
            content = (self._folder / TABLES).read_bytes()
            if hashlib.sha256(content).hexdigest() == manifest["sha256"]:
                os.utime(self._folder / MANIFEST)  # used now
                return safetensors.torch.load(content)
            why = "its tables are not those that were written"
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            why = f"{type(error).__name__}: {error}"
        logger.warning("%s is damaged and made again: %s", self._folder, why)
        self._warn(
            "prepared_again",
            f"What was prepared of the data before is damaged ({why}), so it is prepared again. If "
            f"this comes back, look for what else writes to {self._cache.folder}, or at the disk.",
        )
        shutil.rmtree(self._folder, ignore_errors=True)
        return None

    def write(self, tables: Mapping[str, Tensor]) -> None:
        """Keeps the tensors unless there is no room: a run does without."""
        size = sum(table.nbytes for table in tables.values())
        if not self._is_held or size > self._cache.most_bytes:
            return
        try:
            trim(self._cache.folder, self._cache.most_bytes - size)
            with whole_folder(self._folder) as folder:
                safetensors.torch.save_file(dict(tables), folder / TABLES)
                with (folder / TABLES).open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                manifest = {**self._facts, "sha256": digest, "made_at": time.time()}
                (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
        except OSError as error:
            self._warn_of(error)

    def _warn_of(self, error: OSError) -> None:
        self._warn(
            "not_kept",
            f"What was prepared of the data cannot be kept for the next run ({error}): it prepares "
            "it again. Give the service's home room, and let the worker write there.",
        )
