"""`stoker data convert --rows` and `--classes`: rows that are samples, and columns of classes."""

from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

pytestmark = pytest.mark.usefixtures("converter_here")

FLOWERS = ["length,width,species,petals"] + [
    f"{n},{n / 2},{['rose', 'aster', 'lily'][n % 3]},{3 + n % 2}" for n in range(60)
]
ROWS = ("--rows", "--target", "species", "--classes")


def table(folder: Path, lines: list[str]) -> str:
    path = folder / "flowers.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_texts_become_classes_that_the_file_names(cli, up, tmp_path):
    made = cli("data", "convert", table(tmp_path, FLOWERS), *ROWS)
    assert made.code == 0, made.err
    assert "60 rows of 3 features. Target: species, 3 classes: 0 aster, 1 lily, 2 rose." in made.out
    with h5py.File(up / "data" / "flowers.h5") as file:
        assert file.attrs["feature_names"].tolist() == ["length", "width", "petals"]
        assert file["targets"][:4].tolist() == [2, 0, 1, 2]
        np.testing.assert_array_equal(file["features"][3], [3, 1.5, 4])
    registered = cli("data", "register", "flowers", "flowers.h5")
    assert (registered.code, "flowers is ready: 60 samples" in registered.out) == (0, True)
    assert "time" not in registered.err


def test_numbers_as_classes_keep_the_order_of_their_size(cli, home, tmp_path):
    rows = ["a,grade", *(f"{n},{[10, 9, 2][n % 3]}" for n in range(30))]
    made = cli("data", "convert", table(tmp_path, rows), "--rows", "--target", "grade", "--classes")
    assert "3 classes: 0 2, 1 9, 2 10." in made.out
    with h5py.File(home / "data" / "flowers.h5") as file:
        assert file["targets"][:3].tolist() == [2, 1, 0]


def test_without_classes_the_target_is_a_number(cli, home, tmp_path):
    made = cli("data", "convert", table(tmp_path, FLOWERS), "--rows", "--target", "width")
    assert made.code == 0, made.err
    assert "species holds no numbers and is left out" in made.err
    with h5py.File(home / "data" / "flowers.h5") as file:
        assert file["features"].shape == (60, 2)
        np.testing.assert_array_equal(file["targets"], np.arange(60, dtype="f4") / 2)


def test_parquet_has_classes_too(cli, home, tmp_path):
    columns = {"a": [0.5, 1.5, 2.5], "is_late": [True, False, True]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "flowers.parquet")
    path = str(tmp_path / "flowers.parquet")
    made = cli("data", "convert", path, "--rows", "--target", "is_late", "--classes")
    assert "2 classes: 0 false, 1 true" in made.out, made.err


def test_nan_in_a_parquet_file_is_no_class(cli, home, tmp_path):
    columns = {"a": [0.5, 1.5, 2.5, 3.5], "kind": [1.0, float("nan"), 0.0, 1.0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "flowers.parquet")
    given = ("--rows", "--target", "kind", "--classes", "--on-bad", "skip")
    made = cli("data", "convert", str(tmp_path / "flowers.parquet"), *given)
    assert "2 classes: 0 0, 1 1" in made.out, made.err
    assert "no class 1." in made.out


def test_a_window_has_the_class_of_a_row_behind_it(cli, home, tmp_path):
    given = ("--window", "4", "--horizon", "2", "--target", "species", "--classes")
    made = cli("data", "convert", table(tmp_path, FLOWERS), *given, "--no-time")
    assert made.code == 0, made.err
    assert "Target: 3 classes: 0 aster, 1 lily, 2 rose." in made.out
    with h5py.File(home / "data" / "flowers.h5") as file:
        assert file["targets"].shape == (55,)
        # The window of rows 0 to 3 is followed by rows 4 and 5, of which 5 is a lily.
        assert file["targets"][:3].tolist() == [1, 2, 0]
        assert file["targets"].attrs["horizons"].tolist() == [2]
        assert file.attrs["feature_names"].tolist() == ["length", "width", "petals"]


def test_a_row_without_a_class_ends_it_or_is_skipped(cli, home, tmp_path):
    refused = cli("data", "convert", table(tmp_path, [*FLOWERS, "1,2,,3"]), *ROWS)
    assert refused.code == 5
    assert "row 61, column species: it has no class. Mend the file, or pass --on-bad" in refused.err
    path = table(tmp_path, [*FLOWERS, "1,2,,3", "1,2,rose,many"])
    made = cli("data", "convert", path, *ROWS, "--on-bad", "skip")
    assert "60 rows of 3 features" in made.out
    assert "Skipped: not numbers 1, no class 1." in made.out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rows",), "--rows needs --target COLUMN"),
        ((*ROWS, "--window", "4"), "--window does not go with --rows"),
        ((*ROWS, "--time", "length"), "--time does not go with --rows"),
        ((*ROWS, "--every", "2"), "--every does not go with --rows"),
        (
            ("--target", "species", "--classes"),
            "--classes goes with --rows, with --window without --entity",
        ),
        (("--rows", "--target", "species"), "holds no numbers (if its values are classes, pass"),
        (("--rows", "--target", "specie", "--classes"), "Did you mean species?"),
        ((), "pass --rows --target COLUMN"),
    ],
)
def test_what_does_not_go_together_is_refused(cli, home, tmp_path, options, told):
    refused = cli("data", "convert", table(tmp_path, FLOWERS), *options)
    assert refused.code == 5
    assert told in " ".join(refused.err.split())


def test_columns_that_are_no_classes_are_refused(cli, home, tmp_path):
    same = ["a,label", *(f"{n},x" for n in range(9))]
    refused = cli(
        "data", "convert", table(tmp_path, same), "--rows", "--target", "label", "--classes"
    )
    assert "has one value in all rows (x), so there is nothing to learn" in refused.err
    many = ["a,label", *(f"{n},{n}" for n in range(1_200))]
    refused = cli(
        "data", "convert", table(tmp_path, many), "--rows", "--target", "label", "--classes"
    )
    assert "has more than 1,000 different values" in refused.err
    alone = ["label", *"xyx"]
    refused = cli(
        "data", "convert", table(tmp_path, alone), "--rows", "--target", "label", "--classes"
    )
    assert refused.code == 5
    path = tmp_path / "flowers.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((3, 2))
    refused = cli("data", "convert", str(path), *ROWS)
    assert "--rows is for tables" in refused.err


def test_fractions_are_no_classes(cli, home, tmp_path):
    rows = ["a,y", *(f"{n},{['1', '2.0', 'x'][n % 3]}" for n in range(30)), "3,2.5"]
    options = ("--rows", "--target", "y", "--classes")
    refused = cli("data", "convert", table(tmp_path, rows), *options)
    assert refused.code == 5
    told = " ".join(refused.err.split())
    assert "row 31: 'y' is 2.5, and a class is a text or a whole number." in told
    assert "Leave out --classes to forecast a number" in told
    made = cli("data", "convert", table(tmp_path, rows[:-1]), *options)
    assert made.code == 0, made.err
    path = tmp_path / "both.npz"
    np.savez(path, x=np.zeros((3, 2), "f4"), y=np.array([0.0, 1.5, 2.5]))
    refused = cli("data", "convert", str(path), "--target", "y", "--classes")
    assert refused.code == 5
    assert "row 2: 'y' is 1.5" in " ".join(refused.err.split())


def test_an_array_of_texts_becomes_classes(cli, home, tmp_path):
    path, x = tmp_path / "both.npz", np.zeros((6, 4, 2), "f4")
    np.savez(path, x=x, y=np.array(["b", "a", "c", "a", "b", "c"]))
    made = cli("data", "convert", str(path), "--target", "y", "--classes")
    assert made.code == 0, made.err
    assert "Target: 3 classes: 0 a, 1 b, 2 c." in made.out
    with h5py.File(home / "data" / "both.h5") as file:
        assert file["y"][:].tolist() == [1, 0, 2, 0, 1, 2]
        assert (file.attrs["inputs"].tolist(), file.attrs["targets"].tolist()) == (["x"], ["y"])
    refused = cli("data", "convert", str(path), "--target", "x", "--classes")
    assert "'x' holds float32 (6, 4, 2), and classes are one text or number a" in refused.err
    refused = cli("data", "convert", str(path), "--target", "why", "--classes")
    assert "has no array 'why'; it has x, y" in refused.err
    np.savez(path, x=x, y=np.array([1, 2, 1, 2, np.nan, 1]))
    refused = cli("data", "convert", str(path), "--target", "y", "--classes")
    assert "y[4] is nan, which is no class" in refused.err
