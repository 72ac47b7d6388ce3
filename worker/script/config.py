"""What a script gave to `stoker.init(config=…)`, which the run shows."""

import json
import time
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from app.plainjson import dump_json
from stoker.secret import masked
from worker.regular_files import read_regular
from worker.script.sources import Warn

LARGEST_BYTES = 2**16
# A change is told so long after the one before, and each time this doubles: a script that changes
# its config at every step for a week is told of 20 times.
FIRST_PAUSE_SECONDS = 1.0


class ScriptConfig:
    """The file that `init` writes; the newest counts."""

    def __init__(self, path: Path, warn: Warn) -> None:
        self._path, self._warn = path, warn
        self._seen: tuple[int, int] | None = None
        self._told = ""
        self._next_at, self._pause = 0.0, FIRST_PAUSE_SECONDS
        self._may_warn = True

    def news(self, *, is_last: bool = False) -> dict[str, Any] | None:
        """What is in the file, without secrets, where it is whole and another than what was told;
        else None. Changes that come too fast wait; `is_last`: not any longer.
        """
        try:
            found = self._path.stat()
            seen = found.st_size, found.st_mtime_ns
            if seen == self._seen:
                return None
            is_large = found.st_size > LARGEST_BYTES
            config = None if is_large else json.loads(read_regular(self._path, LARGEST_BYTES))
        except (OSError, ValueError, RecursionError):  # not there, or not written to its end
            return None
        if not isinstance(config, dict) or not _can_be_shown(config):
            self._seen = seen
            self._warn_of_it()
            return None
        shown: dict[str, Any] = masked(config)
        text, now = dump_json(shown), time.monotonic()
        is_news = text != self._told
        if is_news and now < self._next_at and not is_last:
            return None
        self._seen = seen
        if not is_news:
            return None
        self._told, self._next_at, self._pause = text, now + self._pause, 2 * self._pause
        return shown

    def _warn_of_it(self) -> None:
        """Once."""
        if not self._may_warn:
            return
        self._may_warn = False
        self._warn(
            "config_not_shown",
            "The config that the script gave to stoker.init is not shown. It has to be a "
            f"dictionary, at most {LARGEST_BYTES:,} bytes long as JSON, and not nested too deeply. "
            f"It lies in {self._path}.",
        )


def _can_be_shown(config: dict[str, Any]) -> bool:
    """Whether the API can answer with it."""
    try:
        to_json(config)
    except ValueError:
        return False
    return True
