"""One time that is far ahead: it is named, and the rows behind it are not all left out for it."""

import pytest

from tests.trainer_data.tools.test_quotes import BARS, PANEL, TABLE, converted, time

ROWS = 300


def written(path, wrong):
    rows = {row: f"{time(row)},a,{100 + row % 7}" for row in range(ROWS)}
    rows[wrong] = rows[wrong].replace("2024-", "2034-")
    path.write_text("\n".join(["time,name,close", *rows.values(), ""]))
    return path


def without_names(path):
    path.write_text(path.read_text().replace(",name", "").replace(",a,", ","))
    return path


@pytest.mark.parametrize("reader", [TABLE, BARS, PANEL], ids=["table", "bars", "panel"])
def test_most_rows_are_not_left_out_for_one(tmp_path, capsys, reader):
    path = written(tmp_path / "t.csv", wrong=40)
    path = path if reader is PANEL else without_names(path)
    assert converted(reader, path) == 1
    said = capsys.readouterr().err
    assert "259 rows would be left out because they go back in time, and only 41 kept." in said
    assert "a time is too far ahead: mend it." in said
    assert f"{path}, {'row 42' if reader is TABLE else 'line 43'}" in said
    assert not path.with_suffix(".h5").exists()


def test_the_row_that_is_ahead_is_named(tmp_path, capsys):
    path = without_names(written(tmp_path / "t.csv", wrong=40))
    main, options = TABLE
    assert main([str(path), str(tmp_path / "t.h5"), *options]) == 1
    said = capsys.readouterr().err
    assert (
        "row 42, column time: 2024-01-01 00:41:00 is before 2034-01-01 00:40:00 of row 41." in said
    )


def test_a_few_late_rows_may_be_left_out(tmp_path, capsys):
    path = without_names(written(tmp_path / "t.csv", wrong=280))
    assert converted(TABLE, path) == 0
    assert '"unsorted": 19' in capsys.readouterr().out
