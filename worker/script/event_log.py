"""The events of a script's attempt, also while the disk is full, which it fills itself maybe."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from worker.reporting import PULSE_FORMAT, EventLog, Pulse

FULL = (errno.ENOSPC, errno.EDQUOT)
# Room for the end, and for what the launcher and the agent write after it.
RESERVE_BYTES = 2**16


class ScriptEventLog(EventLog):
    """What cannot be written while the disk is full is left out, so that a script which can go on
    does. For its end there is room that was held free.
    """

    def __init__(self, path: Path) -> None:
        """OSError; none where there is no more room but for a few events, which may tell so."""
        super().__init__(path)
        self._reserve = path.with_name("reserve")
        try:
            self._reserve.write_bytes(bytes(RESERVE_BYTES))
        except OSError as error:
            self._reserve.unlink(missing_ok=True)
            if error.errno not in FULL:
                raise

    def emit(self, kind: str, **data: Any) -> None:
        try:
            super().emit(kind, **data)
        except OSError as error:
            if error.errno not in FULL:
                raise

    def end(self, **data: Any) -> None:
        """The last event. OSError when even that cannot be written."""
        self._reserve.unlink(missing_ok=True)
        super().emit("end", **data)


class ScriptPulse(Pulse):
    """Writes each beat. A mapped file that a script cuts short would end this process by SIGBUS."""

    def __init__(self, path: Path) -> None:
        """OSError."""
        super().__init__(path)
        super().close()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def beat(self) -> None:
        self._counter += 1
        with suppress(OSError):  # such as a full disk
            beat = PULSE_FORMAT.pack(self._phase, self._counter)
            os.pwrite(self._descriptor, beat, 0)

    def close(self) -> None:
        os.close(self._descriptor)
