"""How a CSV file begins: by what its columns are separated, their names, and which are the time."""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from worker.trainer.errors import DataError
from worker.trainer.tools.bad_rows import TIME_NAMES
from worker.trainer.tools.rows.form import (
    PLAIN,
    Form,
    is_like_time,
    is_number_of_any,
    time_place,
)
from worker.trainer.tools.rows.quotes import CsvRows

SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas", "|": "vertical bars"}
ROW_NUMBER = r"\d{1,8}"
HEAD_BYTES, HEAD_ROWS, MOST_LINE = 2**16, 10, 2**24


class Head(NamedTuple):
    """How a CSV file begins. `names` are without blanks around; one that is not there is empty."""

    separator: str
    names: tuple[str, ...]
    empty_lines: int
    """Before the names."""
    nameless: tuple[int, ...] = ()
    """Which columns have no name, and values in the first rows."""
    is_numbered: bool = False
    """Whether the first of these counts rows, as the index that pandas writes does."""

    @property
    def width(self) -> int:
        """How many columns it has, but for empty ones behind the last."""
        filled = (at for at, name in enumerate(self.names) if name or at in self.nameless)
        return 1 + max(filled, default=-1)

    @property
    def separated_by(self) -> str | None:
        """In words; None: by commas, as always, or not at all."""
        is_usual = self.separator == "," or len(self.names) == 1
        return None if is_usual else SEPARATORS[self.separator]

    @property
    def places(self) -> list[int]:
        """Of columns that can be told apart: of those without a name the first alone."""
        first = self.names.index("") if "" in self.names else -1
        return [place for place, name in enumerate(self.names) if name or place == first]

    @property
    def kept(self) -> list[str]:
        """Their names."""
        return [self.names[place] for place in self.places]

    def told(self, time: Sequence[int]) -> dict[str, Any]:
        """What is told of it: the separator, and a column that has no name and is not the time."""
        left_out = [""] if set(self.nameless) - set(time) else []
        return {"left_out": left_out, "separated_by": self.separated_by}


def head_of(path: Path, form: Form) -> Head:
    """Raises DataError where the file does not begin as a table does."""
    text = _first_lines(path)
    lines = [line for line in text if line.strip()]
    empty = next(place for place, line in enumerate(text) if line.strip())
    if lines[0].lower().startswith("sep="):
        raise DataError(
            f"Line 1 of {path} is `{lines[0].strip()}`, which Excel alone reads. Leave it out, as"
            f" with `tail -n +2 {shlex.quote(path.name)} > rows.csv`."
        )
    separator = separator_of(lines, form)
    rows = [*_rows(lines, separator), [], []]
    first, second = rows[:2]
    if len(first) + 1 == len(second) and not second[-1]:
        first = [*first, ""]  # a separator at the end of each row
    others = [len(row) for row in rows[2:] if row]
    # Where the rows behind it are as long as the names, the second line alone is wrong.
    is_alone = 2 * others.count(len(first)) > len(others)
    if second and len(first) != len(second) and not is_alone:
        raise DataError(
            f"Line 1 of {path} has {len(first)} fields and line 2 has {len(second)}: the names of"
            f" the columns have to come first. Leave out what stands before them, as with `tail -n"
            f" +2 {shlex.quote(path.name)} > rows.csv`."
        )
    if not form.has_names:
        return Head(separator, tuple(f"c{place}" for place in range(len(first))), empty)
    names = tuple(re.sub(r"\s*\n\s*", " ", name.strip()) for name in first)
    if _is_data(names):
        raise DataError(_no_names(path, names, empty + 1, separator))
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise DataError(f"{path} has two columns of the name {twice[0]!r}. Rename one.")
    nameless = (place for place, name in enumerate(names) if not name)
    filled = {place for row in rows[1:] for place, text in enumerate(row) if text.strip()}
    empties = tuple(sorted(filled.intersection(nameless)))
    is_numbered = bool(empties) and re.fullmatch(ROW_NUMBER, second[empties[0]].strip()) is not None
    return Head(separator, names, empty, empties, is_numbered)


def _first_lines(path: Path) -> list[str]:
    """Raises DataError for what is no text in UTF-8."""
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES) + file.readline(MOST_LINE)  # to the end of a line
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(not_utf8(path, "UTF-16"))
    try:
        text = start.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(not_utf8(path, "WINDOWS-1252")) from None
    if not text.strip():
        raise DataError(f"{path} is empty. Write a line with the names of the columns, and rows.")
    return list(StringIO(text, newline=""))  # not splitlines, which cuts fields too


def not_utf8(path: Path, likely: str) -> str:
    """What to do about a file in another encoding."""
    name = shlex.quote(path.name)
    return (
        f"{path} is not written in UTF-8. Re-encode it, as with `iconv -f {likely} -t UTF-8 {name}"
        " > rows.csv`."
    )


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    try:
        return list(islice(csv.reader(lines, delimiter=separator), HEAD_ROWS))
    except csv.Error:
        return []


def separator_of(lines: Sequence[str], form: Form = PLAIN) -> str:
    """The first of SEPARATORS that cuts the first lines alike; else what cuts most off them. A
    decimal mark is one where names or quotes say so: not in rows of 1,5 alone.
    """
    counts = {mark: [len(row) for row in _rows(lines, mark)] or [1] for mark in SEPARATORS}
    says_so = form.has_names or any('"' in line for line in lines)
    if not says_so or counts.get(form.decimal, [0])[0] == 1:
        counts.pop(form.decimal, None)
    for mark, each in counts.items():
        if each[0] > 1 and len(set(each)) == 1:
            return mark
    return max(counts, key=lambda mark: (counts[mark][0], counts[mark][1:], mark == ","))


def _is_data(names: Sequence[str]) -> bool:
    """Whether a first line has numbers and times alone. Not 0, 1, 2: pandas writes such names."""
    known = [name for name in names if name]
    if not known or known == [str(place) for place in range(len(known))]:
        return False
    return all(is_number_of_any(name) or is_like_time(name) for name in known)


def _no_names(path: Path, names: Sequence[str], line: int, separator: str) -> str:
    """That a first line is data; or that it may be, where it is different numbers alone, such as
    frequencies: taken for one row, names would be in samples.
    """
    begins = f"Line 1 of {path} holds data ({', '.join(names[:5])}), where the names of the columns"
    option = "pass --no-header, which calls them c0, c1, …"
    known = [name for name in names if name]
    if len(set(known)) < len(known) or any(map(is_like_time, known)):
        return f"{begins} should be. P{option[1:]}, or write a line of names."
    name, mark = shlex.quote(path.name), separator.replace("\t", "\\t")
    return (
        f"{begins} should be, or names that are numbers. If it is data, {option}. If these are"
        f" names, put a letter before each, as with `sed '{line}s/[^{mark}]\\+/c&/g' {name} >"
        " named.csv`."
    )


@contextmanager
def csv_rows(path: Path, form: Form) -> Iterator[tuple[Head, CsvRows]]:
    """How a file begins, and its rows. Raises DataError."""
    head = head_of(path, form)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = CsvRows(path, file, head.separator)
            for _ in range(head.empty_lines + int(form.has_names)):
                next(rows)
            yield head, rows
    except UnicodeDecodeError:
        raise DataError(not_utf8(path, "WINDOWS-1252")) from None


def misfit(row: Sequence[str], last: int, width: int) -> tuple[str, str] | None:
    """The kind of row, and what is wrong with it, where it does not reach its `last` place that is
    used, or has more than `width` fields; a separator too many at its end is no field.
    """
    if len(row) <= last:
        return "short_rows", f"{len(row)} columns, fewer than the header has."
    if any(text.strip() for text in row[width:]):
        return (
            "long_rows",
            f"{len(row)} columns, and {width} have names. Name the others too, or put quotes"
            " around a field that holds the separator, as around 1,5.",
        )
    return None


def require_lines(path: Path, files: Sequence[Path], least: int) -> None:
    """DataError where all files together have fewer lines, which is found before they are read."""
    lines = chain.from_iterable(_lines(file) for file in files)
    if (count := sum(1 for _ in islice(lines, least))) < least:
        lines_there = "1 line" if count == 1 else f"{count:,} lines"
        raise DataError(
            f"{path} has {lines_there}, and one sample takes {least:,} rows at least. Ask for less."
        )


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as lines:
        yield from lines


def time_places(path: Path, head: Head, form: Form) -> tuple[int, ...]:
    """Where the columns of the time are. Raises DataError where there is none; the numbers that
    pandas gives rows are none.
    """
    names = [name.lower() for name in head.names]
    usual = [one for one in TIME_NAMES if one in names and (one or not head.is_numbered)]
    wanted = form.time or usual[:1]
    if not wanted:
        raise DataError(
            f"{path} has no column of times among {', '.join(names) or 'none'}. Name it by --time."
        )
    return tuple(time_place(path, name, names) for name in wanted)
