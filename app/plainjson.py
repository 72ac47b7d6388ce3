"""JSON as every reader takes it: what JSON cannot say becomes null."""

import json
import math
from typing import Any

from pydantic_core import from_json, to_json


def dump_json(value: Any) -> str:
    """The text of a document, in one line; null for NaN and infinity."""
    try:
        # In a third of the time that the json module takes, as below.
        return to_json(value, inf_nan_mode="null").decode()
    except ValueError:  # half of a surrogate pair: UTF-8 cannot say it, an escape can
        return json.dumps(_finite(value), allow_nan=False)


def load_json(text: str | bytes) -> Any:
    """The document of a text that `dump_json` gave."""
    try:
        return from_json(text)
    except ValueError:  # half of a surrogate pair
        return json.loads(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
