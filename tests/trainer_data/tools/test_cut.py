"""Tables cut into samples: CSV, Feather, folders of them, arrays of HDF5 files."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pytest

from tests.trainer_data.test_windows import read_all
from worker.trainer.tools.inspect import inspect
from worker.trainer.tools.rows.form import PLAIN, Form
from worker.trainer.tools.rows.head import csv_rows, head_of
from worker.trainer.tools.rows.text_columns import text_batches
from worker.trainer.tools.samples import SampleCut, main

ROWS, WINDOW, HORIZON = 50, 12, 4


def table(rows: int = ROWS, seed: int = 0) -> pyarrow.Table:
    random = np.random.default_rng(seed)
    return pyarrow.table(
        {
            "hour": [f"h{number}" for number in range(rows)],
            "warmth": random.normal(10, 5, rows),
            "count": random.integers(0, 99, rows),
            "open": random.random(rows) > 0.5,
        }
    )


def numbers(of: pyarrow.Table) -> np.ndarray:
    columns = [of.column(name).to_numpy() for name in ("warmth", "count", "open")]
    return np.column_stack(columns).astype(np.float32)


def write(path: Path, of: pyarrow.Table) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(of, path)
    else:
        pyarrow.feather.write_feather(of, path, chunksize=7)
    return path


def run(path: Path, out: Path, *more: str) -> int:
    given = f"--window={WINDOW}", f"--horizon={HORIZON}", "--target=warmth"
    return main([str(path), str(out), *given, *more])


@pytest.mark.parametrize("kind", ["csv", "feather", "arrow"])
def test_each_sample_is_some_rows_and_what_follows(tmp_path, capsys, kind):
    path, out = write(tmp_path / f"t.{kind}", table()), tmp_path / "out.h5"
    assert run(path, out) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["samples"], made["steps"], made["stretches"]) == (ROWS - 15, ROWS, 1)
    assert (made["features"], made["left_out"]) == (["warmth", "count", "open"], ["hour"])
    rows, samples = numbers(table()), read_all(out)
    for number in range(ROWS - 15):
        assert (samples["features"][number] == rows[number : number + WINDOW]).all()
        following = rows[number + WINDOW : number + WINDOW + HORIZON, 0]
        assert (samples["targets"][number] == following).all()
    report = inspect(out)
    assert report["problems"] == []
    (told,) = report["warnings"]
    assert "gaps between them cannot be seen" in told["message"]
    assert report["fields"]["features"]["shape"] == [WINDOW, 3]
    assert report["fields"]["targets"]["shape"] == [HORIZON]
    with h5py.File(out) as file:
        assert list(file.attrs["feature_names"]) == made["features"]
        assert file.attrs["target_name"] == "warmth"


def test_no_sample_reaches_from_one_file_into_the_next(tmp_path, capsys):
    each = {"b.feather": table(20, 1), "a.feather": table(30, 2), "c.feather": table(10, 3)}
    for name, of in each.items():
        write(tmp_path / "all" / name, of)
    (tmp_path / "all" / "notes.txt").write_text("not a table")
    assert run(tmp_path / "all", tmp_path / "out.h5", "--every=3") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["steps"], made["stretches"]) == (60, 3)
    expected = [
        numbers(each[name])[start : start + WINDOW]
        for name in sorted(each)
        for start in range(0, len(each[name]) - WINDOW - HORIZON + 1, 3)
    ]
    assert (read_all(tmp_path / "out.h5")["features"] == np.stack(expected)).all()


def test_starts_of_stretches_that_hold_no_sample_are_none():
    assert SampleCut(4, 2).starts([6, 5, 7]).tolist() == [0, 11, 12]
    assert SampleCut(1, 1, every=2).starts([5]).tolist() == [0, 2]
    assert SampleCut(4, 2).starts([5, 0]).tolist() == []


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 2)])
def test_an_array_of_an_hdf5_file_is_a_table(tmp_path, capsys, shape):
    series = np.random.default_rng(0).normal(size=shape)
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["series"] = series
        if len(shape) == 2:
            file["series"].attrs["feature_names"] = ["warmth", "wind"]
    target = "warmth" if len(shape) == 2 else "0"
    assert run(tmp_path / "s.h5", tmp_path / "out.h5", f"--target={target}") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["features"] == (["warmth", "wind"] if len(shape) == 2 else ["0"])
    rows = series.astype(np.float32).reshape(ROWS, -1)
    samples = read_all(tmp_path / "out.h5")
    assert (samples["features"][7] == rows[7 : 7 + WINDOW]).all()
    assert (samples["targets"][7] == rows[7 + WINDOW : 7 + WINDOW + HORIZON, 0]).all()


def missing_numbers() -> pyarrow.Table:
    return pyarrow.table({"warmth": [1.0, None, *[2.0] * 20]})


def test_what_is_missing_is_no_number_and_ends_it(tmp_path, capsys):
    path = write(tmp_path / "t.feather", missing_numbers())
    assert run(path, tmp_path / "out.h5") == 1
    assert "row 2, column warmth: it is no number" in capsys.readouterr().err
    assert not (tmp_path / "out.h5").exists()


def text(content: str):
    return lambda path: path.write_text(content)


@pytest.mark.parametrize(
    ("name", "prepare", "told"),
    [
        ("none.csv", lambda _: None, "There is no"),
        ("t.txt", text("Read me first, please.\nThen go on, or not.\n"), "no column of numbers"),
        ("t.csv.gz", text("a,b\n1,2\n"), "Unpack it first: gunzip -k t.csv.gz."),
        ("t.feather", text("not feather"), "cannot be read as a table"),
        ("t.csv", text(""), "is empty"),
        ("t.csv", text("a,warmth\n1,two\n1,three\n"), "holds no numbers"),
        (
            "t.csv",
            text("a,warmth\n1,2\n3\n" + 20 * "1,2\n"),
            "row 2: it has 1 field and 2 columns have names: '3'",
        ),
        ("t.csv", text("a\nx\n"), "no column of numbers, only a"),
        ("t.csv", text("10,20\n1,2\n"), "as with `sed '1s/[^,]\\+/c&/g' t.csv > named.csv`"),
        ("t.tsv", text("10\t20\n1\t2\n"), "If it is data, pass --no-header, which calls"),
        ("t.csv", text("1,1\n1,2\n"), "should be. Pass --no-header, which calls"),
        ("t.csv", text("a\n1\n"), "There is no column 'warmth'; these hold numbers: a"),
        ("t.csv", text("warmth\n1\n2\n"), "has 2 rows, and one sample takes 16"),
        ("t.csv", text("warmth\n"), "the names of columns (warmth) and no rows"),
        ("empty", lambda path: path.mkdir(), "is no table"),
        ("t.h5", text("not hdf5"), "cannot be opened as HDF5"),
    ],
)
def test_what_is_no_table_is_told(tmp_path, capsys, name, prepare, told):
    prepare(tmp_path / name)
    assert run(tmp_path / name, tmp_path / "out.h5") == 1
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("*out.h5*"))


def test_rows_of_other_lengths_are_left_out_where_they_stand(tmp_path, capsys):
    """At the beginning, at the end, and far apart; a later row keeps its number, and no sample
    reaches over one.
    """
    rows = [f"{number},{number % 7}" for number in range(300_000)]
    misfits = {0: "1", 1: "1,2,3", 60: "1,2,3", 200_000: "5", len(rows) - 1: "7"}
    for place, row in misfits.items():
        rows[place] = row
    rows[250_000] = "x,1"
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["", "warmth,count", "0,0", *rows, "1,2,3"]))
    assert run(path, tmp_path / "out.h5") == 1
    assert (
        f"{path}, row 2: it has 1 field and 2 columns have names: '1'. Mend the file, or pass"
        " --on-bad skip: such rows are left out and counted." in capsys.readouterr().err
    )
    assert run(path, tmp_path / "out.h5", "--on-bad=skip") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["bad"] == {"short_rows": 3, "long_rows": 3, "not_numbers": 1}
    told = " ".join(made["told"])
    assert f"{path}, row 250,002, column warmth: 'x' is no number." in told
    ends = [0, 1, 2, 61, 200_001, 250_001, len(rows), len(rows) + 1]
    lengths = [end - begin - 1 for begin, end in pairwise(ends)]
    samples = [max(0, length - WINDOW - HORIZON + 1) for length in lengths]
    features = read_all(tmp_path / "out.h5")["features"]
    assert len(features) == sum(samples)
    assert (np.diff(features[:, :, 0], axis=1) == 1).all()


def test_a_row_of_another_length_keeps_its_place(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\nx\nx,y,z\n1,2\n3,4\n5,6\ny\n7,8\nz\n")
    rows, places = list[str | None](), list[int]()
    for batch in text_batches(path, PLAIN):
        places += [len(rows) + place for place in batch.misfits]
        rows += batch.rows.columns[0].to_pylist()
    assert (rows, places) == ([None, None, "1", "3", "5", None, "7", None], [0, 1, 5, 7])


@pytest.mark.parametrize(("every", "step"), [(11, 11), (12, None)])
def test_windows_that_hardly_overlap_are_known_by_where_they_begin(tmp_path, every, step):
    out = tmp_path / "out.h5"
    assert run(write(tmp_path / "t.csv", table(200)), out, f"--every={every}") == 0
    assert inspect(out)["layout"]["window_steps"].get("features") == step


def test_a_number_far_down_that_is_none_is_told(tmp_path, capsys):
    lines = ["warmth", *["1"] * 800_000, "0.5", "three"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert run(tmp_path / "t.csv", tmp_path / "out.h5") == 1
    assert "row 800,002, column warmth: 'three' is no number" in capsys.readouterr().err
    assert not (tmp_path / "out.h5").exists()


def test_a_line_of_names_may_be_long(tmp_path):
    names = [f"Straße {number}" for number in range(9_000)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([";".join(names), ";".join(["0,5"] * len(names))]), "utf-8")
    assert head_of(path, PLAIN)[:2] == (";", tuple(names))


@pytest.mark.parametrize(
    ("content", "form", "names", "second"),
    [
        ("wert\n1,5\n2,5\n", Form(decimal=","), ("wert",), ["1,5"]),
        ("1,5\n2,5\n", Form(decimal=",", has_names=False), ("c0",), ["1,5"]),
        ('a,b\n"1,5","2,5"\n', Form(decimal=","), ("a", "b"), ["1,5", "2,5"]),
        ("a,b\n1,2\n", Form(decimal=","), ("a", "b"), ["1", "2"]),
        ("a\u2028b,c\x0cd\n1,2\n", PLAIN, ("a\u2028b", "c\x0cd"), ["1", "2"]),
        (" \n\ra,b\n1,2\n", PLAIN, ("a", "b"), ["1", "2"]),
    ],
)
def test_where_a_file_begins_and_is_cut(tmp_path, content, form, names, second):
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode())
    with csv_rows(path, form) as (head, rows):
        assert (head.names, head.separated_by, next(rows)) == (names, None, second)
    (batch,) = text_batches(path, form)
    assert [column[0].as_py() for column in batch.rows.columns] == second


@pytest.mark.parametrize("mark", [".", ","])
def test_the_same_texts_are_numbers_with_either_mark(mark):
    """Of plain ones Python's own reading is as good, and far faster than a pattern."""
    form = Form(decimal=mark)
    for text in ("1", " -2.5 ", "+.5", "3.", "1e-5", "7E+2", "inf", "-Infinity"):
        assert form.number(text.replace(".", mark)) == float(text)
    for text in ("", "1_0", "nan", "1 0", "0x1", "1e", ".", "1d5", "1.2.3"):
        assert np.isnan(form.number(text.replace(".", mark))), text


def test_files_of_a_folder_that_do_not_go_together_are_told(tmp_path, capsys):
    write(tmp_path / "all" / "a.csv", table())
    (tmp_path / "all" / "b.csv").write_text("warmth,count\n1,2\n")
    assert run(tmp_path / "all", tmp_path / "out.h5") == 1
    assert "b.csv has no column 'open', which a.csv has" in capsys.readouterr().err
    write(tmp_path / "all" / "c.feather", table())
    assert run(tmp_path / "all", tmp_path / "out.h5") == 1
    assert "tables of several kinds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), "has cube, series, words: name the array with --array"),
        (("--array=none",), "no array 'none'"),
        (("--array=cube",), "it is no series"),
        (("--array=words",), "dtype"),
    ],
)
def test_an_array_that_is_no_series_is_told(tmp_path, capsys, more, told):
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["series"], file["cube"] = np.zeros((30, 2)), np.zeros((30, 2, 2))
        file["words"] = np.array([b"a"])
    assert run(tmp_path / "s.h5", tmp_path / "out.h5", *more) == 1
    assert told in capsys.readouterr().err
    assert run(write(tmp_path / "t.csv", table()), tmp_path / "out.h5", "--array=x") == 1
    assert "no HDF5 file" in capsys.readouterr().err


def test_without_pyarrow_the_extra_is_named(tmp_path):
    path = write(tmp_path / "t.csv", table())
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from worker.trainer.tools.samples import main; sys.exit(main(sys.argv[1:]))"
    )
    given = [str(path), "out.h5", "--window=1", "--horizon=1", "--target=warmth"]
    done = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'stoker[worker]'" in done.stderr
