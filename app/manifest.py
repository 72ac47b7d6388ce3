"""The manifest of a checkpoint: which files belong to it, and how each is known to be whole.

A checkpoint's folder holds `manifest.json` beside its files: {"checksum": SHA-256 of the rest as
JSON with sorted keys, "files": {name: {"bytes": size, "sha256": hash}}, "step": …}.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

MANIFEST = "manifest.json"


class BadManifest(ValueError):
    """It cannot be understood, or is not as it was written."""


def manifest_bytes(body: Mapping[str, Any]) -> bytes:
    """The file of a manifest without its checksum; ValueError for NaN and infinity."""
    document = {"checksum": _checksum(body), **body}
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def parse_manifest(data: bytes) -> dict[str, Any]:
    """The manifest without its checksum. BadManifest."""
    try:
        document = json.loads(data)
        checksum = document.pop("checksum")
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise BadManifest(f"{MANIFEST} is no manifest: {error}") from error
    if checksum != _checksum(document):
        raise BadManifest(f"{MANIFEST} is not as it was written")
    return dict(document)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
