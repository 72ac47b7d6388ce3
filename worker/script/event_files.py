"""Scalars of TensorBoard's event files, as they are written. Read by TensorBoard's own reader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# Not read further in one look: a file that brings more is read on the next time.
MOST_EVENTS = 20_000


class Scalar(NamedTuple):
    """A point of a curve."""

    name: str
    step: int
    value: float


class NoReader(Exception):
    """The package that reads event files is not installed here."""


class EventFile:
    """One file, read from where the last look ended. A damaged record ends it there: what was read
    before stays, `is_damaged` says so.
    """

    def __init__(self, path: Path) -> None:
        """NoReader."""
        try:
            # Late: half a second, and only for scripts that write such files.
            from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        except ImportError as error:
            raise NoReader(str(error)) from error
        self.path = path
        self.is_damaged = self.is_behind = False
        self._loader: Any = EventFileLoader(str(path))

    def read(self) -> Iterator[Scalar]:
        """What is new of it; `is_behind` says whether there may be more."""
        count, self.is_behind = 0, False
        try:
            for event in self._loader.Load():
                for value in event.summary.value:
                    number = _number(value)
                    if number is not None:
                        yield Scalar(value.tag, event.step, number)
                count += 1
                if count >= MOST_EVENTS:
                    self.is_behind = True
                    return
        except Exception:  # noqa: BLE001 - the reader raises what its parts raise
            self.is_damaged = True


def _number(value: Any) -> float | None:
    """Of a scalar, old or new; None for a picture, a histogram or text."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor"):
        return None
    tensor = value.tensor
    if len(tensor.float_val) == 1:
        return float(tensor.float_val[0])
    if len(tensor.double_val) == 1:
        return float(tensor.double_val[0])
    return None
