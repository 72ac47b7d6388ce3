"""How a script ended, in words: by its exit code, and by the last lines of its log."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.lifecycle import Reason

OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory")
NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
LOG_END_BYTES = 8192


@dataclass(frozen=True)
class ScriptEnd:
    """How the attempt ended, as the end event tells it."""

    reason: Reason
    message: str
    result: dict[str, Any] | None = None


def how_it_ended(code: int) -> str:
    """An exit code, or a signal where it is negative."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def end_by_itself(log: Path, code: int, told: str, result: dict[str, Any]) -> ScriptEnd:
    """Of a script that nobody asked to stop: by its exit code and the last lines of its log."""
    if code == 0:
        return ScriptEnd(Reason.completed, told, result)
    end = _end_of(log)
    last = next((line.strip() for line in reversed(end.split("\n")) if line.strip()), "")
    hint = f" The last line of its log: {last[:300]}" if last else ""
    if OUT_OF_MEMORY.search(end):
        return ScriptEnd(Reason.device_oom, f"{told} The GPU's memory ran out.{hint}", result)
    if NO_SPACE.search(end):
        told = f"{told} A disk is full: free space, and restart the run."
        return ScriptEnd(Reason.disk_full, told + hint, result)
    if code == -signal.SIGKILL:
        return ScriptEnd(Reason.killed, f"{told} It was not Stoker who sent that.", result)
    return ScriptEnd(Reason.crashed, told + hint, result)


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LOG_END_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
