"""Quotes of a CSV file that are never closed, or too late.

The lines behind them are in one field then, where they would be lost without a word.
"""

import csv
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from worker.trainer.errors import DataError

TAIL_BYTES = 2**12


class CsvRows(Iterator[list[str]]):
    """As `csv.reader` has them, with the line in which the newest begins. Raises DataError for what
    is no CSV file, and at its end where a quote is still open.
    """

    def __init__(self, path: Path, lines: Iterable[str], separator: str) -> None:
        self._path = path
        self._reader = csv.reader(lines, delimiter=separator)
        self._row: list[str] = []
        self.line = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[str]:
        begin = self._reader.line_num + 1
        try:
            row = next(self._reader)
        except StopIteration:
            require_closed(self.at, self._path, self._row[-1] if self._row else "")
            raise
        except csv.Error as error:
            raise DataError(
                f"{self._path}, line {begin}: {error}. A quote there may not be closed; mend the"
                " file."
            ) from None
        self._row, self.line = row, begin
        return row

    @property
    def at(self) -> str:
        """Where the newest row begins, for people."""
        return f"{self._path}, line {self.line}"

    def require_one_line(self) -> None:
        """DataError where the newest, which is left out, holds several."""
        require_one_line(self.at, "".join(self._row))


def require_one_line(at: str, text: str) -> None:
    """DataError where what is left out has line breaks in it: other rows, for all that is known."""
    if lines := text.count("\n"):
        raise DataError(
            f"{at}: a quote takes {lines + 1:,} lines into one row. Close it, or take it out of"
            " the file; --on-bad skip does not leave out such a row."
        )


def require_closed(at: str, path: Path, last: str) -> None:
    """DataError where the `last` field of a file's last row begins with a quote that is not closed,
    as far as line breaks in it show.
    """
    if "\n" not in last.strip():
        return
    with path.open("rb") as file:
        file.seek(-min(TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
        is_closed = file.read().rstrip().endswith(b'"')
    if not is_closed:
        lines = last.strip().count("\n")
        rest = "1 line is" if lines == 1 else f"{lines:,} lines are"
        raise DataError(
            f"{at}: a quote begins there that is never closed, so the last {rest} in one field."
            " Close it, or take it out of the file."
        )
