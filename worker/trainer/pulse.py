"""The sixteen bytes by which the supervisor sees that a trainer is alive and moving."""

import mmap
import struct
from pathlib import Path
from typing import Final

PHASES: Final = (
    "starting",
    "building",
    "restoring",
    "compiling",
    "training",
    "evaluating",
    "checkpointing",
    "testing",
    "recording",
)
PULSE_FORMAT: Final = struct.Struct("<QQ")  # index into PHASES, counter


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
