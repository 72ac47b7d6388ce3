"""The tables that a recipe prepares of its data: made once, kept on disk by what they follow from.

What is kept is read whole, and used only if its hash is that of its manifest.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from app.datacache import MANIFEST, TABLES, EntryLock, trim
from worker.trainer.attempt import DataCache, TrainerAttempt
from worker.trainer.checkpoints.whole_file import whole_folder
from worker.trainer.data.dataset import DataSet
from worker.trainer.recipes.base import Task
from worker.trainer.recipes.contract import tables_of
from worker.trainer.report.preparing import Preparing

logger = logging.getLogger(__name__)

Tables = dict[str, Tensor]

# 2: every dataset of a run was looked at, not that alone which is trained on.
# 3: tables of molecules have the mean and deviation of their targets.
FORMAT = 3
WAIT_SECONDS = 0.1


def prepared_tables(
    task: Task, attempt: TrainerAttempt, data: DataSet, preparing: Preparing
) -> Tables:
    """On the host; none of a recipe that prepares nothing.

    Another trainer that makes the same tables is waited for. Raises TrainerError when the recipe
    gives something else than tensors, and what its `prepare` raises; StopRequested.
    """
    cache = attempt.data_cache
    if type(task).prepare is Task.prepare:
        return {}
    if cache is None:
        return _made(task, data, preparing)
    facts = _facts(task, attempt, data)
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    try:
        lock = EntryLock(cache.folder, key)
    except OSError as error:
        _warn_of(preparing, error)
        return _made(task, data, preparing)
    with lock:
        while not lock.take():
            preparing.piece_done()
            time.sleep(WAIT_SECONDS)
        tables = _kept(cache.folder / key, preparing)
        if tables is None:
            tables = _made(task, data, preparing)
            _keep(cache, key, facts, tables, preparing)
    return tables


def _facts(task: Task, attempt: TrainerAttempt, data: DataSet) -> dict[str, Any]:
    """All that the tables follow from."""
    recipe, wanted = task.recipe, attempt.spec.data
    given = recipe.model_dump(mode="json")
    return {
        "format": FORMAT,
        "recipe": recipe.kind,
        "version": recipe.version,
        "parameters": {name: given[name] for name in task.prepared_by},
        "datasets": {name: one["fingerprint"] for name, one in attempt.datasets.items()},
        "data": wanted.model_dump(mode="json", include={"dataset", "inputs", "targets", "split"}),
        "fields": {name: [list(f.shape), str(f.dtype)] for name, f in data.fields.items()},
    }


def _made(task: Task, data: DataSet, preparing: Preparing) -> Tables:
    """Called afresh; in a phase of its own, which may last."""
    preparing.enter("preparing")
    tables = tables_of(task, task.prepare(data.for_recipe(preparing)))
    preparing.enter("building")
    # Copies, so that no two share memory, which a file of them would not allow.
    return {name: table.detach().cpu().contiguous().clone() for name, table in tables.items()}


def _kept(folder: Path, preparing: Preparing) -> Tables | None:
    """Those of an entry that is whole; one that is not is removed."""
    if not folder.exists():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        content = (folder / TABLES).read_bytes()
        if hashlib.sha256(content).hexdigest() == manifest["sha256"]:
            os.utime(folder / MANIFEST)  # used now
            return safetensors.torch.load(content)
        why = "its tables are not those that were written"
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        why = f"{type(error).__name__}: {error}"
    logger.warning("%s is damaged and made again: %s", folder, why)
    preparing.warn(
        "prepared_again",
        f"What was prepared of the data before is damaged ({why}), so it is prepared again. If "
        f"this comes back, look for what else writes to {folder.parent}, or at the disk.",
    )
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _keep(
    cache: DataCache, key: str, facts: Mapping[str, Any], tables: Tables, preparing: Preparing
) -> None:
    """Unless there is no room: a run does without."""
    size = sum(table.nbytes for table in tables.values())
    if size > cache.most_bytes:
        return
    try:
        trim(cache.folder, cache.most_bytes - size)
        with whole_folder(cache.folder / key) as folder:
            safetensors.torch.save_file(tables, folder / TABLES)
            with (folder / TABLES).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            manifest = {**facts, "sha256": digest, "made_at": time.time()}
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    except OSError as error:
        _warn_of(preparing, error)


def _warn_of(preparing: Preparing, error: OSError) -> None:
    preparing.warn(
        "not_kept",
        f"What was prepared of the data cannot be kept for the next run ({error}): it prepares it "
        "again. Give the service's home room, and let the worker write there.",
    )
