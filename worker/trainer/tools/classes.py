"""Classes of a table's column: its values as numbers from 0, in their order."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from worker.trainer.errors import DataError

MOST_CLASSES = 1_000
SHOWN = 20


@dataclass
class Classes:
    """Numbers the values of a column as they come; `numbered` puts them in their order."""

    column: str
    numbers: dict[str, int] = field(default_factory=dict)
    """The number of each value, in the order of their first rows."""

    def add(self, values: Iterable[str]) -> NDArray[np.int64]:
        """Returns the number of each value so far. DataError if there are too many of them."""
        labels = [self.numbers.setdefault(value, len(self.numbers)) for value in values]
        if len(self.numbers) > MOST_CLASSES:
            raise DataError(
                f"The column {self.column!r} has more than {MOST_CLASSES:,} different values, which"
                " are too many for classes. Leave out --classes to forecast a number, or name"
                " another column."
            )
        return np.array(labels, np.int64)

    def numbered(self, labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
        """Returns the labels that `add` gave, numbered in the order of the values, and the values.

        Numbers are ordered as such, so that labels from 0 on stay what they are. DataError if there
        is one class alone.
        """
        if len(self.numbers) < 2:
            raise DataError(
                f"The column {self.column!r} has one value in all rows"
                f" ({', '.join(self.numbers)}), so there is nothing to learn. Name another one."
            )
        names = sorted(self.numbers, key=_place)
        places = {name: place for place, name in enumerate(names)}
        new = np.array([places[name] for name in self.numbers], np.int64)
        return new[labels], names


def refuse_fractions(labels: Iterable[str | None], where: str, before: int, column: str) -> None:
    """Raises DataError if a label is a number that is not whole. `where`: the file; `before`: how
    many rows of it came before these.
    """
    labels = list(labels)
    fractions = {label for label in set(labels) if label is not None and _is_fraction(label)}
    for place, label in enumerate(labels if fractions else ()):
        if label in fractions:
            raise DataError(
                f"{where}, row {before + place + 1:,}: {column!r} is {label}, and a class is a text"
                " or a whole number. Leave out --classes to forecast a number, or write the"
                " classes as texts or whole numbers."
            )


def _is_fraction(label: str) -> bool:
    try:
        number = float(label)
    except ValueError:
        return False
    return math.isfinite(number) and not number.is_integer()


def _place(value: str) -> tuple[int, float, str]:
    """Numbers by size, before texts in the order of their letters."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    return (0, number, value) if math.isfinite(number) else (1, 0.0, value)


def told(names: list[str]) -> str:
    """The classes with their numbers, for people."""
    shown = ", ".join(f"{place} {name}" for place, name in enumerate(names[:SHOWN]))
    more = len(names) - SHOWN
    return f"{len(names):,} classes: {shown}{f' and {more:,} more' if more > 0 else ''}"
