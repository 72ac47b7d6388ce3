"""A quote that is not closed takes lines into one field: they are not lost without a word."""

import pytest

from worker.trainer.tools import bars, samples
from worker.trainer.tools.molecules import convert as molecules
from worker.trainer.tools.panel import panel_rows as panel

ROWS, BROKEN = 300, 120
TABLE = samples.main, ("--window=10", "--horizon=2", "--target=close")
BARS = bars.main, ("--timeframes=M1:10,M5:4", "--horizon=3", "--target=close")
PANEL = panel.main, ("--entity=name", "--window=10", "--horizon=2", "--target=close")
MOLECULES = molecules.main, ("--smiles=smiles", "--target=close")
WITH_NOTES = pytest.mark.parametrize("reader", [TABLE, MOLECULES], ids=["table", "molecules"])


def file(path, cell="fine", ending="\n"):
    """`cell` is the note of one row; those of the others are a word."""
    rows = [f"{time(row)},CCO,{100 + row % 7},fine" for row in range(ROWS)]
    rows[BROKEN] = rows[BROKEN].removesuffix("fine") + cell
    path.write_bytes(ending.join(["time,smiles,close,note", *rows, ""]).encode())
    return path


def time(row):
    return f"2024-01-01 {row // 60:02}:{row % 60:02}"


def converted(reader, path):
    main, options = reader
    return main([str(path), str(path.with_suffix(".h5")), *options, "--on-bad=skip"])


@WITH_NOTES
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_quote_that_is_never_closed_is_told(tmp_path, capsys, reader, ending):
    """In a column that nobody reads: no row is wrong by itself."""
    assert converted(reader, file(tmp_path / "t.csv", '"oh', ending)) == 1
    said = capsys.readouterr().err
    place = f"row {BROKEN + 1}" if reader is TABLE else f"line {BROKEN + 2}"
    assert f"t.csv, {place}: a quote begins there that is never closed, so the last" in said
    assert f"last {ROWS - BROKEN - 1} lines are in one field. Close it" in said
    assert not (tmp_path / "t.h5").exists()


@WITH_NOTES
@pytest.mark.parametrize("cell", ['"said, in\ntwo ""lines"""', '5" wide', '"a" b'])
def test_a_note_may_have_quotes_and_lines(tmp_path, capsys, reader, cell):
    assert converted(reader, file(tmp_path / "t.csv", cell)) == 0, capsys.readouterr().err
    assert '"bad": {}' in capsys.readouterr().out


@WITH_NOTES
def test_a_note_of_two_lines_may_be_the_last(tmp_path, capsys, reader):
    path = file(tmp_path / "t.csv")
    path.write_text(path.read_text().removesuffix("fine\n") + '"in\ntwo"\n')
    assert converted(reader, path) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("reader", "columns", "row"),
    [
        (TABLE, "time,close,note", "{time},{quote}10{number},fine"),
        (TABLE, "time,note,close", "{time},fine,{quote}10{number}"),
        (TABLE, "time,close,note", "{quote}{time},10{number},fine"),
        (BARS, "time,close", "{time},{quote}10{number}"),
        (BARS, "time,close", "{quote}{time},10{number}"),
        (PANEL, "time,name,close", "{time},a,{quote}10{number}"),
        (MOLECULES, "smiles,close", "{quote}CCO,10{number}"),
        (MOLECULES, "close,smiles", "10{number},{quote}CCO"),
    ],
)
@pytest.mark.parametrize("closed", [150, None])
def test_a_row_that_is_left_out_has_one_line(tmp_path, capsys, reader, columns, row, closed):
    """Never closed, or by a later row: what lies between is no row that may be skipped."""
    lines = [
        row.format(time=time(line), number=line % 7, quote='"' if line in (BROKEN, closed) else "")
        for line in range(ROWS)
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([columns, *lines, ""]))
    assert converted(reader, path) == 1
    said = capsys.readouterr().err
    is_told = "lines into one row" in said or "never closed" in said
    assert is_told
    assert "Close it, or take it out of the file" in said
    assert len(said) < 300
