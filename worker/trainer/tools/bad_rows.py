"""Rows of a table that cannot be used, how a time is read, and what such a column is called."""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from worker.trainer.errors import DataError
from worker.trainer.tools.timeframes import LABEL, UNIT_SECONDS

TIME_NAMES = ("time", "timestamp", "datetime", "date", "gmt time", "")
MILLISECONDS_FROM = 1e11  # epoch seconds reach it in the year 5138
TOLD = 5


@dataclass
class Bad:
    """What to do with what cannot be used, and how much of it there was."""

    skips: bool
    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def add(self, kind: str, sentence: str, instead: str) -> None:
        """Raises DataError, unless such are skipped. `instead`: what skipping would do."""
        if not self.skips:
            raise DataError(f"{sentence} Mend the file, or pass --on-bad skip: {instead}.")
        self.counts[kind] += 1
        if len(self.told) < TOLD:
            self.told.append(sentence)


def seconds_of(text: str, least: float = -math.inf) -> int:
    """Epoch seconds of ISO 8601 (UTC where no zone is said, and 20200131 is a day) or of epoch
    seconds, from `least` on, or milliseconds. Raises ValueError.
    """
    text = text.strip()
    if len(text) == len("20200131") and text.isdecimal():
        with suppress(ValueError):
            return _of_iso(text)
    try:
        number = float(text)
    except ValueError:
        return _of_iso(text)
    if number < least:
        raise ValueError(text)
    return round(number / 1000 if number >= MILLISECONDS_FROM else number)


def _of_iso(text: str) -> int:
    when = datetime.fromisoformat(text)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def gap_of(text: str) -> int:
    """Seconds of a length such as 90m, 6h or 3d. Raises DataError."""
    found = LABEL.fullmatch(text[-1:].upper() + text[:-1])
    if found is None:
        raise DataError(
            f"{text!r} is no length of time; write minutes, hours or days: 90m, 6h, 3d."
        )
    return UNIT_SECONDS[found[1]] * int(found[2])
