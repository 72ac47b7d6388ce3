"""CSV as Arrow reads it, all as text.

Numbers are read from that, so that one that is none can be told with its row and as it stands. A
row of too few or too many fields has its place too, with nothing in it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.formats.arrow_index import arrow
from worker.trainer.errors import DataError
from worker.trainer.tools.rows.form import Form, is_number_of_any
from worker.trainer.tools.rows.head import Head, head_of, not_utf8
from worker.trainer.tools.rows.quotes import require_closed, require_one_line

SAMPLED = 200


class RowBatch(NamedTuple):
    """Some rows of a file."""

    rows: Any
    """An Arrow record batch, null where nothing stands."""
    misfits: Mapping[int, tuple[str, str]]
    """By their place in it, those of another length: the kind, and what is wrong."""


def text_batches(path: Path, form: Form) -> Iterator[RowBatch]:
    """Batches of text. Raises DataError."""
    library, head = arrow(), head_of(path, form)
    misfits: deque[tuple[int, tuple[str, str]]] = deque()  # those ahead, by their row in the file
    spread: list[Any] = []  # over several lines
    lines_before = 1 + head.empty_lines + int(form.has_names)

    def keep(row: Any) -> str:
        if "\n" in row.text:
            spread.append(row)
            return "error"
        misfits.append((row.number - lines_before, _misfit(row)))
        return "skip"

    count, last = 0, ""
    try:
        with _reader(path, head, keep, has_names=form.has_names) as reader:
            for batch in reader:
                columns = [batch.columns[place] for place in head.places]
                rows = library.RecordBatch.from_arrays(columns, names=head.kept)
                found = _with_misfits(rows, count, misfits)
                count += len(found.rows)
                last = (batch.columns[-1][len(batch) - 1].as_py() or "") if len(batch) else last
                yield found
            require_closed(f"{path}, row {count:,}", path, last)
            if misfits:  # behind all others
                none = [library.nulls(len(misfits), library.string())] * len(head.kept)
                rows = library.RecordBatch.from_arrays(none, names=head.kept)
                yield RowBatch(rows, dict(enumerate(what for _, what in misfits)))
    except library.ArrowInvalid as error:
        if spread:
            number = spread[0].number - lines_before + 1
            require_one_line(f"{path}, row {number:,}", spread[0].text)
        if "UTF8" in str(error):
            raise DataError(not_utf8(path, "WINDOWS-1252")) from None
        raise


def _reader(path: Path, head: Head, keep: Callable[[Any], str], *, has_names: bool) -> Any:
    """`keep`: what becomes of a row of another length."""
    from pyarrow import csv  # late, as pyarrow itself

    text = arrow().string()
    names = [str(place) for place in range(len(head.names))]  # theirs may be alike, or empty
    return csv.open_csv(
        path,
        csv.ReadOptions(
            use_threads=False,  # else rows have no numbers
            column_names=names,
            skip_rows=head.empty_lines,
            skip_rows_after_names=int(has_names),
        ),
        csv.ParseOptions(
            delimiter=head.separator, newlines_in_values=True, invalid_row_handler=keep
        ),
        csv.ConvertOptions(column_types=dict.fromkeys(names, text), strings_can_be_null=True),
    )


def _misfit(row: Any) -> tuple[str, str]:
    kind = "short_rows" if row.actual_columns < row.expected_columns else "long_rows"
    fields = "1 field" if row.actual_columns == 1 else f"{row.actual_columns} fields"
    named = f"{row.expected_columns} columns have names"
    return kind, f"it has {fields} and {named}: {row.text[:80]!r}."


def _with_misfits(rows: Any, count: int, misfits: deque[tuple[int, tuple[str, str]]]) -> RowBatch:
    """Rows with those of another length that stand before or between them; `count`: how many rows
    of the file came before.
    """
    here: dict[int, tuple[str, str]] = {}
    while misfits and misfits[0][0] < count + len(rows) + len(here):
        row, what = misfits.popleft()
        here[row - count] = what
    if here:
        is_misfit = np.zeros(len(rows) + len(here), bool)
        is_misfit[list(here)] = True
        places = np.cumsum(~is_misfit) - 1
        rows = rows.take(arrow().array(places, mask=is_misfit))
    return RowBatch(rows, here)


def numbers_of(texts: Any, form: Form) -> NDArray[np.float64]:
    """Of an Arrow column of text; NaN where there is none."""
    library = arrow()
    from pyarrow import compute  # late, as pyarrow itself

    texts = compute.utf8_trim_whitespace(texts)
    if form.is_plain:
        try:
            return _as_array(texts.cast(library.float64()))
        except library.ArrowInvalid:
            pass
        for word, digit in (("true", "1"), ("false", "0")):
            texts = compute.replace_substring_regex(texts, f"(?i)^{word}$", digit)
    is_number = compute.match_substring_regex(
        texts, f"{form.number_pattern}|(?i)^[+-]?inf(inity)?$"
    )
    texts = compute.if_else(is_number, texts, library.scalar(None, library.string()))
    if form.thousands:
        texts = compute.replace_substring(texts, form.thousands, "")
    if form.decimal != ".":
        texts = compute.replace_substring(texts, form.decimal, ".")
    return _as_array(texts.cast(library.float64()))


def _as_array(column: Any) -> NDArray[np.float64]:
    found = column.to_numpy(zero_copy_only=False)
    return np.asarray(found, np.float64)


def sampled(column: Any, most: int = SAMPLED) -> list[str]:
    """Some of the values that are there, as text, from all over a column."""
    places = np.unique(np.linspace(0, max(len(column) - 1, 0), most).astype(int))[: len(column)]
    known = (str(column[place].as_py()) for place in places.tolist() if column[place].is_valid)
    return [text for text in known if text.strip()]


def is_numeric(column: Any, form: Form) -> bool:
    """Whether most of what stands in it are numbers in this form, or of some way to write."""
    texts = sampled(column)
    numbers = sum(is_number_of_any(one) or not np.isnan(form.number(one)) for one in texts)
    return bool(texts) and 2 * numbers >= len(texts)


def require_readable(path: Path, name: str, column: Any, form: Form) -> None:
    """DataError where most numbers of a column are written in another way."""
    if int(np.isnan(numbers_of(column, form)).sum()) <= column.null_count:
        return
    texts = sampled(column)
    others = [text for text in texts if form.advice(text)]
    if 2 * len(others) > len(texts):
        row = next(row for row, one in enumerate(column, 1) if form.advice(one.as_py() or ""))
        text = column[row - 1].as_py()
        advice = form.advice(text, head_of(path, form).separator)
        raise DataError(f"{path}, row {row}, column {name}: {text!r} is no number.{advice}")
