"""CSV as Arrow reads it, all as text.

Numbers are read from that, so that one that is none can be told with its row and as it stands.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.formats.arrow_index import arrow
from worker.trainer.errors import DataError
from worker.trainer.tools.rows.form import Form, is_number_of_any
from worker.trainer.tools.rows.head import head_of, not_utf8

SAMPLED = 200


def text_batches(path: Path, form: Form) -> Iterator[Any]:
    """Record batches of text, null where nothing stands. Raises DataError."""
    library, head = arrow(), head_of(path, form)
    from pyarrow import csv  # late, as pyarrow itself

    wrong: list[Any] = []

    def keep(row: Any) -> str:
        wrong.append(row)
        return "error"

    names = [str(place) for place in range(len(head.names))]  # theirs may be alike, or empty
    try:
        with csv.open_csv(
            path,
            csv.ReadOptions(
                use_threads=False,  # else rows have no numbers
                column_names=names,
                skip_rows=head.empty_lines,
                skip_rows_after_names=int(form.has_names),
            ),
            csv.ParseOptions(
                delimiter=head.separator, newlines_in_values=True, invalid_row_handler=keep
            ),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, library.string()), strings_can_be_null=True
            ),
        ) as reader:
            for batch in reader:
                columns = [batch.columns[place] for place in head.places]
                yield library.RecordBatch.from_arrays(columns, names=head.kept)
    except library.ArrowInvalid as error:
        if wrong:
            raise DataError(_of_other_length(path, wrong[0], form)) from None
        if "UTF8" in str(error):
            raise DataError(not_utf8(path, "WINDOWS-1252")) from None
        raise


def _of_other_length(path: Path, row: Any, form: Form) -> str:
    fields = "1 field" if row.actual_columns == 1 else f"{row.actual_columns} fields"
    quote = " A quote in it may not be closed." if row.text.count('"') % 2 else ""
    return (
        f"{path}, row {row.number - int(form.has_names):,}: it has {fields} and"
        f" {row.expected_columns} columns have names: {row.text[:80]!r}.{quote} Mend the file:"
        " --on-bad skip does not leave out such a row."
    )


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
