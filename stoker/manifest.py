"""The manifest of a checkpoint: which files belong to it, and how each is known to be whole.

A checkpoint's folder holds `manifest.json` beside its files, which may lie in folders below it:
{"checksum": SHA-256 of the rest as JSON with sorted keys, "files": {name: {"bytes": size,
"sha256": hash}}, "run_id": …, "attempt": …, "step": …, "epoch": …, "metrics": {name: number}, …}.
What more it says is for the trainer alone (worker/trainer/checkpoints/manifest.py).
"""

from __future__ import annotations  # scripts of older Pythons import it

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Mapping  # noqa: UP035 - for these, too

MANIFEST = "manifest.json"

# The largest that the database has a place for.
COUNTS = {"run_id": 10**15, "attempt": 2**31 - 1, "step": 10**15, "epoch": 2**31 - 1}
LARGEST_FILE_BYTES = 2**63 - 1
LONGEST_FILE_NAME = 255


class BadManifest(ValueError):
    """It cannot be understood, or is not as it was written, or not of the place where it lies."""


def manifest_bytes(body: Mapping[str, Any]) -> bytes:
    """The file of a manifest without its checksum; ValueError for NaN and infinity."""
    document = {"checksum": _checksum(body), **body}
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def parse_manifest(data: bytes) -> dict[str, Any]:
    """The manifest without its checksum. What is named above is of the types and in the ranges that
    its readers rely on; all but `files` may be absent. BadManifest.
    """
    try:
        document = json.loads(data)
        checksum = document.pop("checksum")
        found = _checksum(document)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise BadManifest(f"{MANIFEST} is no manifest: {error}") from error
    if checksum != found:
        raise BadManifest(f"{MANIFEST} is not as it was written")
    for name, most in COUNTS.items():
        if name in document and not _is_count(document[name], most):
            raise BadManifest(f"{MANIFEST} has no number from 0 to {most} as its {name}")
    if not _are_metrics(document.get("metrics", {})):
        raise BadManifest(f"{MANIFEST} has metrics that are not names with a finite number each")
    files = document.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise BadManifest(f"{MANIFEST} does not say which files there are, with size and hash")
    for name in files:
        if not _is_file_name(name):  # whoever reads or writes it would do so somewhere else
            raise BadManifest(f"{MANIFEST} names a file outside of its folder, {name!r}")
    return dict(document)


def require_place(folder: Path, body: Mapping[str, Any]) -> None:
    """Raises BadManifest when it is of another run, attempt or step than ROOT/runs/<id>/
    attempt-<n>/checkpoints/step-<n>: somebody put it there, and to train on from it would pass for
    this run's own work.
    """
    place = folder.parents[2].name, folder.parent.parent.name, folder.name
    run, attempt, step = (body.get(name) for name in ("run_id", "attempt", "step"))
    if (f"{run}", f"attempt-{attempt}", f"step-{step}") != place:
        raise BadManifest(
            f"its manifest is of run {run}, attempt {attempt}, step {step}, which is not where it "
            "lies"
        )


def _is_file_name(name: str) -> bool:
    """Whether it can name a file in a folder, or in one below it: parts between slashes, of which
    none leads up.
    """
    parts = name.split("/")
    are_plain = all(Path(part).name == part and part not in ("", "..") for part in parts)
    return are_plain and name.isprintable() and len(name.encode()) <= LONGEST_FILE_NAME


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and _is_count(entry.get("bytes"), LARGEST_FILE_BYTES)
        and isinstance(entry.get("sha256"), str)
    )


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _are_metrics(value: object) -> bool:
    return isinstance(value, dict) and all(
        name.isprintable() and type(number) in (int, float) and abs(number) <= sys.float_info.max
        for name, number in value.items()
    )


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
