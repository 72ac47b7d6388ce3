"""Prints the text of a log: as it is to a terminal, as a terminal would show it into a pipe."""

import sys
from typing import TextIO

REDRAW = "\r"


class LogPrinter:
    """Prints pieces of a log. Into a pipe or a file a progress bar is one line, its last state."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._is_terminal = self._out.isatty()
        self._line = ""  # not ended yet

    def print(self, text: str) -> None:
        """Prints the lines that have ended; the last one waits, since a bar may redraw it."""
        if not self._is_terminal:
            *lines, rest = (self._line + text).split("\n")
            text = "".join(f"{_last_state(line)}\n" for line in lines)
            before, redraw, state = rest.rpartition(REDRAW)  # a bar's earlier states are dropped
            self._line = f"{_last_state(before)}{redraw}{state}"
        self._out.write(text)
        self._out.flush()

    def close(self) -> None:
        """Prints the rest."""
        self._out.write(_last_state(self._line))
        self._out.flush()
        self._line = ""


def _last_state(line: str) -> str:
    """Returns what a terminal would show of a line that is redrawn from its start."""
    if REDRAW not in line:
        return line
    states = [state for state in line.split(REDRAW) if state.strip()]
    return states[-1] if states else ""
