"""What made runs alike when revision 0006 was released."""

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

ALIKE = (
    ("recipe",),
    ("data", "dataset"),
    ("data", "inputs"),
    ("data", "targets"),
    ("data", "loader"),
    ("training", "batch_size"),
    ("training", "gradient_accumulation_steps"),
    *(("runtime", name) for name in ("precision", "compile", "deterministic", "threads")),
    ("runtime", "cuda_graphs"),
)
LIKENESS_DIGITS = 32


def likeness_of(spec: dict[str, Any]) -> str:
    """The same text for specs that are alike."""
    told = json.dumps([_at(spec, keys) for keys in ALIKE], sort_keys=True)
    return sha256(told.encode()).hexdigest()[:LIKENESS_DIGITS]


def _at(document: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document
