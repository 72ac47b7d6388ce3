"""JSON as every reader takes it: what JSON cannot say becomes null."""

import json
import math
from typing import Any


def dump_json(value: Any) -> str:
    """The text of a document, in one line; null for NaN and infinity."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
