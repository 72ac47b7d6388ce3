"""`stoker data convert` and rows without a number, times of digits alone, a file that is there."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.cli.data.test_convert import (
    CUT,
    assert_no_sample_reaches_over_what_is_missing,
    csv,
    hourly,
    skipped,
)

pytestmark = pytest.mark.usefixtures("converter_here")


@pytest.mark.parametrize(
    ("head", "number", "said"),
    [
        ("time,hour,warmth", "nan", "it is no number (missing, or NaN)"),
        ("time,hour,warmth", "1e39", "it is infinite as a 32-bit number"),
        ("word,hour,warmth", "", "it is no number (missing, or NaN)"),
        ("word,hour,warmth", "inf", "it is infinite as a 32-bit number"),
    ],
)
def test_a_row_without_a_number_ends_it_or_is_left_out(cli, home, tmp_path, head, number, said):
    rows = hourly()
    rows[40] = f"{rows[40].rpartition(',')[0]},{number}"
    path, out = csv(tmp_path / "rows.csv", head, rows=rows), tmp_path / "new" / "out.h5"
    if head.startswith("word"):
        path.write_text(path.read_text().replace("2024-", "x"))
    refused = cli("data", "convert", str(path), str(out), *CUT)
    assert (refused.code, refused.out) == (5, "")
    assert f"{path}, row 41, column warmth: {said}. Mend the file, or" in refused.err
    assert not out.parent.exists()
    made = cli("data", "convert", str(path), str(out), *CUT, "--on-bad", "skip")
    assert made.code == 0, made.err
    gaps = ["gaps 1"] if head.startswith("time") else []
    assert skipped(made.out) == ["not numbers 1", *gaps]
    assert "77 samples of 2 features" in made.out
    assert_no_sample_reaches_over_what_is_missing(out)
    if gaps:
        longer = ("--max-gap", "3d", "--on-bad", "skip", "--force")
        made = cli("data", "convert", str(path), str(out), *CUT, *longer)
        assert (skipped(made.out), "77 samples" in made.out) == (["not numbers 1"], True)


def test_an_array_of_hdf5_with_nan_is_told_with_its_row_and_column(cli, home, tmp_path):
    series = np.arange(200.0).reshape(100, 2)
    series[7, 1] = np.nan
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["rows"] = series
        file["rows"].attrs["feature_names"] = ["hour", "warmth"]
    refused = cli("data", "convert", str(tmp_path / "rows.h5"), str(tmp_path / "out.h5"), *CUT)
    assert refused.code == 5
    assert "rows.h5, row 8, column warmth: it is no number" in refused.err


def test_arrays_that_are_written_as_they_are_have_their_nan_told(cli, home, tmp_path):
    x, y = np.zeros((50, 6, 2), "float32"), np.zeros(50)
    x[[7, 9], 3] = np.nan
    np.savez(tmp_path / "both.npz", x=x, y=y)
    made = cli("data", "convert", str(tmp_path / "both.npz"))
    assert made.code == 0
    assert "warning: 2 samples of x have NaN or infinite values; the first is x[7]." in made.err
    assert " of y " not in made.err

    series = np.arange(300.0, dtype="float32")
    series[100] = np.inf
    windows = np.stack([series[start : start + 12] for start in range(280)])
    with h5py.File(tmp_path / "slides.h5", "w") as file:
        file["features"], file["targets"] = windows, np.full(280, np.nan)
    made = cli("data", "convert", str(tmp_path / "slides.h5"), str(tmp_path / "out.h5"))
    assert made.code == 0, made.err
    assert (
        "warning: 12 samples of features have NaN or infinite values; the first is features[89]"
        in (made.err)
    )
    assert "warning: 280 samples of targets" in made.err


@pytest.mark.parametrize(
    ("options", "rows", "said"),
    [
        ((*CUT[:4], "--target", "wamth"), None, "Did you mean warmth?"),
        (("--timeframes", "H1:10", "--horizon", "2", "--target", "no"), None, "no column 'no'"),
        ((*CUT[:4], "--entity", "nobody"), None, "no column 'nobody' that says whose row it is"),
        ((*CUT[:4], "--entity", "hour", "--target", "wamth"), None, "Did you mean warmth?"),
        (("--smiles", "form"), None, "no column 'form'; its columns are time, hour, warmth."),
        (CUT, "spoilt", "row 41, column warmth: it is no number"),
        (CUT, "few", "has 5 rows, and one sample takes 12"),
        (("--timeframes", "H1:10", "--horizon", "2", "--target", "hour"), "spoilt",
         "column warmth: 'nan' is no finite number"),
        (CUT, None, None),
        (("--timeframes", "H1:10", "--horizon", "2", "--target", "hour"), None, None),
    ],
)  # fmt: skip
def test_a_file_that_is_there_is_told_before_reading_and_replaced_by_force_alone(
    cli, home, tmp_path, options, rows, said
):
    """Reading a large table takes minutes, and whether OUT is there does not hang on it."""
    lines = hourly()
    if rows == "spoilt":
        lines[40] = f"{lines[40].rpartition(',')[0]},nan"
    path = csv(tmp_path / "x.csv", "time,hour,warmth", rows=lines[:5] if rows == "few" else lines)
    out = tmp_path / "out.h5"
    out.write_bytes(b"mine")
    refused = cli("data", "convert", str(path), str(out), *options)
    assert (refused.code, refused.out) == (5, "")
    is_wrong = rows != "spoilt" and said is not None
    assert ("exists already; --force replaces it." in refused.err) is not is_wrong
    assert ((said or "") in refused.err) is (is_wrong or not said), "a column is looked for before"
    forced = cli("data", "convert", str(path), str(out), *options, "--force")
    assert (forced.code, (said or "") in forced.err) == (5 if said else 0, True)
    assert (out.read_bytes() == b"mine") is bool(said)


@pytest.mark.parametrize("name", ["arrays.npy", "slides.h5", "ragged.h5"])
def test_no_file_is_replaced_unasked(cli, home, tmp_path, name):
    path, out = tmp_path / name, tmp_path / "out.h5"
    options: tuple[str, ...] = ()
    out.write_bytes(b"mine")
    if name == "arrays.npy":
        np.save(path, np.zeros((9, 3)))
    else:
        with h5py.File(path, "w") as file:
            if name == "slides.h5":
                rows = np.arange(300.0, dtype="float32")
                file["features"] = np.stack([rows[n : n + 12] for n in range(280)])
            else:
                group, options = file.create_group("atoms"), ("--pad", "4")
                group.attrs["ragged"] = 1
                group["values"], group["offsets"] = np.zeros(5, "float32"), np.array([0, 2, 5])
                file["energy"] = np.zeros(2)
    refused = cli("data", "convert", str(path), str(out), *options)
    assert (refused.code, out.read_bytes()) == (5, b"mine")
    assert "exists already; --force replaces it." in refused.err
    made = cli("data", "convert", str(path), str(out), *options, "--force")
    assert made.code == 0, made.err


def timed(folder: Path, texts: list[str], kind: str) -> tuple[Path, tuple[str, ...]]:
    """A file of rows with these times of digits, as text, numbers or bars; and how it is cut."""
    if kind == "bars":
        rows = [f"{text},{n + 1},{n + 0.5},{n + 0.75}" for n, text in enumerate(texts)]
        path = csv(folder / "rows.csv", "time,high,low,close", rows=rows)
        return path, ("--timeframes", "M1:10", "--horizon", "2")
    given = texts if kind == "text" else [int(text) for text in texts]
    path = folder / "rows.parquet"
    parquet.write_table(pyarrow.table({"time": given, "warmth": np.arange(100.0)}), path)
    return path, CUT


@pytest.mark.parametrize("kind", ["text", "numbers", "bars"])
@pytest.mark.parametrize(
    ("form", "read_as"),
    [
        ("%Y%m%d%H%M", "YYYYMMDDHHMM"),
        ("%Y%m%d%H%M%S", "YYYYMMDDHHMMSS"),
        ("%s000", "milliseconds since 1970"),
        ("%s000000", "microseconds since 1970"),
    ],
)
def test_times_of_digits_alone_are_read_as_what_they_are(cli, home, tmp_path, form, read_as, kind):
    begin = datetime(2024, 1, 31, 23, 0, tzinfo=UTC)  # 100 minutes, into another month
    moments = [begin + timedelta(minutes=minute) for minute in range(100)]
    texts = [one.strftime(form.replace("%s", f"{one.timestamp():.0f}")) for one in moments]
    out = tmp_path / "out.h5"
    path, cut = timed(tmp_path, texts, kind)
    made = cli("data", "convert", str(path), str(out), *cut)
    assert made.code == 0, made.err
    assert f"Times were read as {read_as}, in UTC.\n" in made.out
    assert "Skipped" not in made.out
    if kind == "bars":
        with h5py.File(out) as file:
            assert file["ends"][0] == begin.timestamp() + 10 * 60


@pytest.mark.parametrize("kind", ["text", "numbers", "bars"])
def test_digits_of_a_day_that_there_is_not_are_no_other_time(cli, home, tmp_path, kind):
    """202402301200 is not the millisecond of 1976 that has this number."""
    begin = datetime(2024, 2, 29, 23, 0, tzinfo=UTC)
    texts = [f"{begin + timedelta(minutes=minute):%Y%m%d%H%M}" for minute in range(100)]
    texts[70] = "202402301200"
    path, cut = timed(tmp_path, texts, kind)
    refused = cli("data", "convert", str(path), *cut)
    assert (refused.code, "is no time: neither ISO 8601" in refused.err) == (5, True)
    assert ("line 72" if kind == "bars" else "row 71") in refused.err


def test_a_number_that_could_be_two_times_is_refused_with_its_row_and_column(cli, home, tmp_path):
    given = [1_700_000_000_000_000 + 60_000_000 * minute for minute in range(100)]
    given[40] *= 10  # 17 digits: microseconds of the year 2508, or a date and its milliseconds
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"time": given, "warmth": np.arange(100.0)}), path)
    refused = cli("data", "convert", str(path), *CUT)
    assert refused.code == 5
    said = "row 41, column time: it is no time: neither ISO 8601 nor, since 1970, seconds"
    assert f"{path}, {said}" in refused.err


def test_a_folder_is_no_file_to_write(cli, home, tmp_path):
    path = csv(tmp_path / "x.csv", "time,hour,warmth", rows=hourly())
    refused = cli("data", "convert", str(path), str(tmp_path), *CUT, "--force")
    assert (refused.code, f"{tmp_path} is a folder; name a file" in refused.err) == (5, True)


@pytest.mark.parametrize("name", ["a.smi", "a.sdf"])
def test_a_column_is_not_named_where_there_are_none(cli, home, tmp_path, name):
    (tmp_path / name).write_text("CCO\n")
    refused = cli("data", "convert", str(tmp_path / name), "--smiles", "smiles")
    assert (refused.code, refused.out) == (5, "")
    assert f"--smiles names a column of a table, and a {name[1:]} file has none" in refused.err
