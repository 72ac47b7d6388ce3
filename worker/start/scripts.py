"""From a script's lease to its launch: spec.json, the folder that it finds Stoker in, its GPU."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.settings import Settings
from app.spec.script import ScriptSpec
from app.store.records import Lease
from worker.agent.slots import HeldSlots
from worker.launch.local import PACKAGES
from worker.start.preparation import run_dir

Document = dict[str, Any]
COMMAND = [sys.executable, "-P", "-m", "worker.script"]
# For the runner to end what does not end itself, and to keep the last save, which it reads and
# hashes, before the launcher ends it.
MARGIN_SECONDS = 300.0


def uses_gpu(spec: ScriptSpec, slots: HeldSlots) -> bool:
    return bool(slots.gpus) and spec.runtime.gpus != 0


def script_document(
    settings: Settings,
    lease: Lease,
    spec: ScriptSpec,
    slots: HeldSlots,
    *,
    restore: Sequence[Document],
    has_saved: bool,
    code: Document | None,
) -> Document:
    """The content of spec.json; the environment lies elsewhere, since it may hold secrets.

    OSError when the folder that the script finds Stoker in cannot be made.
    """
    recipe, kept = spec.recipe, spec.recipe.environment
    return {
        "run_id": lease.run_id,
        "attempt": lease.attempt,
        "spec": spec.model_dump(mode="json"),
        "argv": list(spec.argv or recipe.argv),
        "cwd": recipe.cwd or str(Path.home()),
        "environment_file": None
        if kept is None
        else str(settings.environments_dir / f"{kept}.json"),
        "path_folder": str(path_folder(settings.home)),
        "gpus": list(slots.uuids) if uses_gpu(spec, slots) else [],
        "restore": list(restore),
        "has_saved": has_saved,
        "code": code,
        "run_dir": str(run_dir(settings.artifact_root, lease.run_id)),
    }


def path_folder(home: Path) -> Path:
    """A folder with `stoker` and `sitecustomize.py` alone: on PYTHONPATH it hides no module of the
    script's own, be it called `app`, `worker` or `tests`.
    """
    folder = home / "script_path"
    folder.mkdir(mode=0o700, exist_ok=True)
    sitecustomize = PACKAGES / "worker" / "script" / "path" / "sitecustomize.py"
    for name, target in (("stoker", PACKAGES / "stoker"), ("sitecustomize.py", sitecustomize)):
        link = folder / name
        if not link.is_symlink() or link.readlink() != target:  # another version was here
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.symlink_to(target)
            temporary.replace(link)
    return folder
