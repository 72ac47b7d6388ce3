"""What a script gave to `stoker.init(config=…)`, which the run shows."""

import json
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from worker.script.sources import Warn

LARGEST_BYTES = 2**16


class ScriptConfig:
    """The file that `init` writes; the newest counts."""

    def __init__(self, path: Path, warn: Warn) -> None:
        self._path, self._warn = path, warn
        self._seen: tuple[int, int] | None = None

    def news(self) -> dict[str, Any] | None:
        """What is in the file, where it has changed and is whole; else None."""
        try:
            found = self._path.stat()
            seen = found.st_size, found.st_mtime_ns
            if seen == self._seen:
                return None
            is_large = found.st_size > LARGEST_BYTES
            config = None if is_large else json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):  # not there, or not written to its end
            return None
        self._seen = seen
        if isinstance(config, dict) and _can_be_shown(config):
            return config
        self._warn(
            "config_not_shown",
            "The config that the script gave to stoker.init is not shown: it is not an object, or "
            f"too deep, or larger than {LARGEST_BYTES:,} bytes. It lies in {self._path}.",
        )
        return None


def _can_be_shown(config: dict[str, Any]) -> bool:
    """Whether the API can answer with it."""
    try:
        to_json(config)
    except ValueError:
        return False
    return True
