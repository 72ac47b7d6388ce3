"""Makes an export: a folder that is whole, with a manifest of sizes and hashes, or not there."""

import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from app.lifecycle import Reason
from stoker.manifest import MANIFEST, BadManifest, manifest_bytes, parse_manifest
from worker.trainer.checkpoints import disk
from worker.trainer.checkpoints.format import Snapshot, TornCheckpoint, load
from worker.trainer.errors import TrainerError

WEIGHTS = "model.safetensors"


def make_export(order: Mapping[str, Any]) -> dict[str, Any]:
    """Write `order["out"]`: `{bytes, facts}` of it. What is there already is taken as it is.

    TrainerError, OSError.
    """
    out = Path(order["out"])
    manifest = _manifest_of(out)
    if manifest is None:
        with _folder(out) as partial:
            facts = _fill(order, partial)
            body = {
                "run_id": order["run_id"],
                "step": order["step"],
                "checkpoint_id": order["checkpoint_id"],
                "format": order["format"],
                **facts,
                "files": _hashed(partial),
            }
            disk.write_file(partial / MANIFEST, manifest_bytes(body))
        manifest = _manifest_of(out)
    if manifest is None:
        raise TrainerError(Reason.disk_full, f"{out} is not there, although it was written.")
    size = sum(path.stat().st_size for path in out.iterdir())
    return {"bytes": size, "facts": manifest["facts"]}


def _fill(order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write the files of the format; what the manifest says of them."""
    snapshot = _read(order)
    facts = {"versions": {"torch": torch.__version__}}
    if order["format"] == "safetensors":
        disk.write_file(folder / WEIGHTS, snapshot.parts["model"])
    else:
        from worker.trainer.weights.onnx_export import write_and_measure  # the extra: late

        facts = write_and_measure(order, snapshot.parts["model"], folder)
    return {
        "facts": facts,
        "recipe": snapshot.body.get("recipe", {}),
        "spec": order["spec"],
        "metrics": snapshot.body.get("metrics", {}),
    }


def _read(order: Mapping[str, Any]) -> Snapshot:
    """The weights that were evaluated. TrainerError."""
    folder = Path(order["checkpoint"])
    try:
        snapshot = load(folder, ("model",))
    except TornCheckpoint as error:
        raise TrainerError(
            Reason.checkpoint_unusable,
            f"Checkpoint {order['checkpoint_id']} is damaged ({error}), so nothing was exported. "
            f"`stoker checkpoints {order['run_id']}` lists others.",
        ) from error
    if snapshot.has_stale_statistics:
        raise TrainerError(
            Reason.spec_error,
            f"Checkpoint {order['checkpoint_id']} was saved while batch norm's statistics were "
            "being updated, so they are not those of its averaged weights, and nothing was "
            "exported. The run updates them once it goes on; or export another checkpoint: "
            f"`stoker checkpoints {order['run_id']}` lists them.",
        )
    return snapshot


def _manifest_of(folder: Path) -> dict[str, Any] | None:
    """That of an export that is there and whole; what is not whole is removed."""
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
        files = manifest["files"].items()
        if all((folder / name).stat().st_size == one["bytes"] for name, one in files):
            return manifest
    except (FileNotFoundError, BadManifest):
        pass
    if folder.exists():
        shutil.rmtree(folder)
    return None


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when the block ends well; as durable as a
    checkpoint. What a process that was killed has left of the same is removed first.
    """
    if not out.parent.exists():
        disk.make_folder(out.parent)
        disk.sync_folder(out.parent.parent)
    for left in out.parent.glob(f".{out.name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    partial = out.with_name(f".{out.name}.{time.time_ns()}.tmp")
    disk.make_folder(partial)
    try:
        yield partial
        for path in (*partial.iterdir(), partial):
            disk.sync_file(path)
        disk.rename(partial, out)
        disk.sync_folder(out.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _hashed(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.name] = {"bytes": file.tell(), "sha256": digest}
    return found
