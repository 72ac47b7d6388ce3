"""What an attempt writes for the agent: its events, and a pulse that shows it is alive."""

import mmap
import re
import struct
import threading
import time
from pathlib import Path
from typing import Any, Final

from app.plainjson import dump_json

PHASES: Final = (
    "starting",
    "building",
    "restoring",
    "preparing",
    "compiling",
    "training",
    "evaluating",
    "checkpointing",
    "testing",
    "capturing",
    "running",
)
PULSE_FORMAT: Final = struct.Struct("<QQ")  # index into PHASES, counter


# What colours and moves the cursor of a terminal.
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")
LONGEST_LAST_LINE = 300


def last_line(log: bytes) -> str:
    """The last line with something on it of the end of a log, as a terminal would show it: of a
    progress bar its last state, and nothing that colours; "" where there is none.
    """
    text = ESCAPES.sub("", log.decode("utf-8", "replace"))
    for line in reversed(re.split(r"[\n\r]", text)):
        if shown := "".join(one if one.isprintable() else " " for one in line).strip():
            return shown[:LONGEST_LAST_LINE]
    return ""


class Pulse:
    """Writes (phase, counter) in place; a beat is a memory write, cheap enough for every batch."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(PULSE_FORMAT.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), PULSE_FORMAT.size)
        self._phase = 0
        self._counter = 0

    @property
    def phase(self) -> str:
        return PHASES[self._phase]

    def enter(self, phase: str) -> None:
        self._phase = PHASES.index(phase)
        self.beat()

    def beat(self) -> None:
        self._counter += 1
        PULSE_FORMAT.pack_into(self._memory, 0, self._phase, self._counter)

    def close(self) -> None:
        self._memory.close()


class EventLog:
    """Appends one JSON object a line, flushed per line; the agent reads along.

    Any thread may emit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seq = len(path.read_bytes().splitlines()) if path.exists() else 0
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def emit(self, kind: str, **data: Any) -> None:
        with self._lock:
            self._seq += 1
            event = {"seq": self._seq, "t": time.time(), "kind": kind, **data}
            self._file.write(dump_json(event) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()
