"""Arrow files that cannot be used, are not as they were, or are damaged: each is told in words."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow
import pytest
import torch

from tests.trainer_data import test_windows
from tests.trainer_data.factories import entry, make_spec
from tests.trainer_data.formats.arrow_files import column, table, write, write_folder, write_hdf5
from tests.trainer_data.formats.test_arrow import ARRAYS, GIB, opened, read_all
from worker.trainer.data.dataset import open_data
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.formats import arrow_index
from worker.trainer.data.formats.arrow_index import read_index
from worker.trainer.errors import DataError, DatasetChanged, TrainerError
from worker.trainer.tools.convert import convert
from worker.trainer.tools.inspect import inspect


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "data", ARRAYS)


def codes(report, kind="problems"):
    return [finding["code"] for finding in report[kind]]


@pytest.mark.parametrize("packing", ["lz4", None])
def test_a_folder_is_described(tmp_path, packing):
    words = pyarrow.array(["word"] * 500)
    folder = write_folder(tmp_path / "data", {"words": words, **ARRAYS}, packing)
    report = inspect(folder)
    assert codes(report) == []
    assert codes(report, "warnings") == ["unusable_array"]
    assert "'words' is string" in report["warnings"][0]["message"]
    assert report["samples"] == 500
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert report["size_bytes"] == report["fingerprint"]["size"] == sum(sizes)
    features = report["fields"]["features"]
    assert (features["shape"], features["dtype"]) == ([6, 3], "float32")
    assert (features["storage"], features["chunks"]) == ("record_batches", [30, 6, 3])
    assert features["mean"] == pytest.approx(ARRAYS["features"].mean(dtype=np.float64))
    assert features["sampled_rows"] == 500
    assert report["read_probe"]["bytes"] == ARRAYS["features"].nbytes
    assert report["fingerprint"] == fingerprint(folder)
    assert report["fingerprint"]["files"] == 4


def test_one_file_is_a_dataset_too(tmp_path):
    report = inspect(write(tmp_path / "a.feather", table(**ARRAYS)))
    assert codes(report) == []
    assert report["samples"] == 500


def rename(folder, old, new):
    path = folder / "part-02.feather"
    rest = {new if name == old else name: array[:50] for name, array in ARRAYS.items()}
    write(path, table(**rest))


def narrow(folder):
    columns = {**ARRAYS, "targets": ARRAYS["targets"].astype(np.float16)}
    write(folder / "part-02.feather", table(**columns))


def empty(folder):
    for path in folder.iterdir():
        path.unlink()


def missing_values(folder):
    numbers = ARRAYS["features"][:1].reshape(-1).tolist()
    gap = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([None, *numbers[1:]], "float32"), 3), 6
    )
    write(folder / "part-04.feather", table(features=gap, targets=ARRAYS["targets"][:1]))


BAD_FOLDERS = {
    "another name": (
        lambda folder: rename(folder, "targets", "target"),
        "'targets' is not there in .*part-02.feather and .*4.* in part-00.feather",
    ),
    "another type": (narrow, "'targets' is .*halffloat.*part-02.* and .*float.*same columns"),
    "no files": (empty, "has no Arrow files"),
    "a link": (
        lambda folder: (folder / "x.arrow").symlink_to(folder / "part-00.feather"),
        "x.arrow is a link, which is not followed for safety",
    ),
    "not Arrow": (
        lambda folder: (folder / "x.arrow").write_bytes(b"a,b\n1,2\n" * 100),
        "x.arrow is no Arrow IPC file",
    ),
    "version 1": (
        lambda folder: (folder / "x.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1"),
        "x.feather is Feather of version 1; write it again as version 2",
    ),
    "nothing in it": (
        lambda folder: (folder / "x.arrow").write_bytes(b""), "x.arrow is no Arrow IPC file",
    ),
    "cut short": (
        lambda folder: os.truncate(folder / "part-03.feather", 3_000),
        "part-03.feather cannot be read as a table .* it is damaged, cut short or of another kind",
    ),
    "cut down to a word": (
        lambda folder: os.truncate(folder / "part-03.feather", 6),
        "part-03.feather cannot be read as a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_FOLDERS)
def test_a_bad_folder_is_told_what_is_wrong(folder, kind, unstopped):
    spoil, told = BAD_FOLDERS[kind]
    registered = {"numbers": entry(folder)}
    spoil(folder)
    report = inspect(folder)
    assert codes(report)[0] in ("unreadable", "not_a_file")
    assert report["fingerprint"] is None
    with pytest.raises(DataError, match=told):
        read_index(folder)
    assert report["problems"][0]["message"].endswith(".")
    with pytest.raises(TrainerError):
        open_data(make_spec(), registered, torch.device("cpu"), unstopped, GIB)


def test_missing_values_in_any_file_leave_a_column_out(folder):
    missing_values(folder)
    report = inspect(folder)
    assert list(report["fields"]) == ["targets"]
    assert (
        "has 1 missing values (nulls) in a record batch of part-04.feather; fill or drop them. It"
        in (report["warnings"][0]["message"])
    )


def test_record_batches_too_large_to_read_are_refused(folder, monkeypatch):
    monkeypatch.setattr("worker.trainer.tools.inspect.MAX_CHUNK_BYTES", 1_000)
    report = inspect(folder)
    assert codes(report) == ["huge_chunks"]
    assert "record batches of 2,160 bytes" in report["problems"][0]["message"]


def touch(folder):
    os.utime(folder / "part-01.feather")


def change_quietly(folder):
    """Other numbers of the same size, with the times put back."""
    path = folder / "part-01.feather"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[200:208] = b"changed!"
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_quietly(folder):
    """Two files with each other's names: the same bytes, in another order."""
    one, other = folder / "part-01.feather", folder / "part-02.feather"
    for old, new in ((one, folder / "x"), (other, one), (folder / "x", other)):
        old.rename(new)


CHANGES = {
    "written": (touch, r"modification time changed \(written since: part-01.feather\)"),
    "added": (
        lambda folder: write(folder / "z.arrow", table(**ARRAYS)),
        r"size, modification time, number of files changed \(written since: z.arrow\)",
    ),
    "missing": (lambda folder: (folder / "part-03.feather").unlink(), "number of files"),
    "cut short": (lambda folder: os.truncate(folder / "part-02.feather", 3_000), "its size"),
    "changed quietly": (change_quietly, "its content changed"),
    "swapped": (swap_quietly, "its content changed"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_folder_that_is_not_as_it_was_registered_ends_the_run(folder, kind, unstopped):
    change, told = CHANGES[kind]
    registered = {"numbers": entry(folder)}
    change(folder)
    with pytest.raises(DatasetChanged, match=f"The folder of dataset 'numbers', .*{told}"):
        open_data(make_spec(), registered, torch.device("cpu"), unstopped, GIB)


def test_files_that_are_written_between_the_checks_end_the_run(folder, unstopped, monkeypatch):
    def late(path):
        touch(path)
        return arrow_index.read_index(path)

    monkeypatch.setattr("worker.trainer.data.checked.read_index", late)
    with pytest.raises(DatasetChanged, match="written while the run began"):
        open_data(make_spec(), {"numbers": entry(folder)}, torch.device("cpu"), unstopped, GIB)


def test_a_dataset_without_samples_is_refused(tmp_path, unstopped):
    none = write(tmp_path / "a.arrow", table(**{n: a[:0] for n, a in ARRAYS.items()}))
    assert codes(inspect(none)) == ["no_samples"]
    with pytest.raises(DataError, match="holds no samples"):
        open_data(make_spec(), {"numbers": entry(none)}, torch.device("cpu"), unstopped, GIB)


def test_without_pyarrow_the_extra_is_named(folder):
    code = (
        "import sys, json; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\n"
        "from worker.trainer.tools.inspect import inspect\n"
        "print(json.dumps(inspect(Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
    )
    [problem] = json.loads(done.stdout)["problems"]
    assert "pip install 'stoker[worker]'" in problem["message"]


def test_a_look_into_arrow_files_loads_no_torch(folder):
    code = (
        "import sys, pathlib, worker.trainer.tools.inspect as it\n"
        "it.inspect(pathlib.Path(sys.argv[1]))\n"
        "assert 'pyarrow' in sys.modules; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
    )
    assert not {"torch", "pandas"} & set(done.stdout.split())


def damaged(data, number):
    random = np.random.default_rng(number)
    damaged = bytearray(data)
    # The head of the one record batch is in front, the footer at the end.
    begin, end = ((0, 900), (len(data) - 900, len(data)), (0, len(data)))[number % 3]
    for place in random.integers(begin, end, size=int(random.integers(1, 5))):
        damaged[place] = random.integers(256)
    return damaged


@pytest.mark.parametrize("packing", ["lz4", None])
def test_damage_is_a_sentence_or_other_numbers(tmp_path, packing):
    """Never another error, a read beyond the array or memory without end. pyarrow looks at the
    footer's schema first, which it verifies.
    """
    few = {name: array[:20] for name, array in ARRAYS.items()}
    path = write(tmp_path / "a.arrow", table(**few), packing)
    data, told = path.read_bytes(), list[str]()
    for number in range(300):
        path.write_bytes(damaged(data, number))
        try:
            with opened(path, ARRAYS) as source:
                rows = read_all(source, np.arange(source.num_samples))
            assert all(len(array) == source.num_samples for array in rows.values())
        except TrainerError as error:
            told.append(error.message)
    assert len(told) > 60
    assert all(message.endswith(".") for message in told)


def test_numbers_of_lists_are_those_of_their_rows(tmp_path):
    """A slice of a longer table, whose lists begin in the middle of their numbers."""
    part = pyarrow.table({"x": column(ARRAYS["features"])}).slice(101, 77)
    with opened(write(tmp_path / "a.arrow", part, rows=500), ["x"]) as source:
        assert read_all(source, np.arange(77))["x"].tobytes() == (
            ARRAYS["features"][101:178].tobytes()
        )


def test_windows_of_arrow_files_become_a_series(tmp_path):
    series = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    slides = np.lib.stride_tricks.sliding_window_view(series, 28, 0).transpose(0, 2, 1)
    arrays = {"features": slides[:, :24], "targets": slides[:, 24:, 0]}
    folder = write_folder(tmp_path / "data", {**arrays, "words": pyarrow.array(["word"] * 373)})
    assert inspect(folder)["layout"]["window_steps"] == {"features": 1, "targets": 1}
    made = convert(folder, tmp_path / "out.h5")
    assert made["series"]["features"] == {"window_length": 24, "steps": 396, "samples": 373}
    assert made["bytes_before"] == sum(path.stat().st_size for path in folder.iterdir())
    assert made["left_out"] == ["words"]
    same = write_hdf5(tmp_path / "same.h5", **arrays)
    convert(same, tmp_path / "expected.h5")
    assert all(
        one.tobytes() == other.tobytes()
        for one, other in zip(
            read_windows(tmp_path / "out.h5"), read_windows(tmp_path / "expected.h5"), strict=True
        )
    )


def read_windows(path):
    return list(test_windows.read_all(path).values())
