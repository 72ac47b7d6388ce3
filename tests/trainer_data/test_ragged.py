"""Arrays whose samples differ in length: written, checked, looked into and padded."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.trainer_data.factories import entry, make_spec
from worker.trainer.data.dataset import open_data
from worker.trainer.data.formats import ragged_files
from worker.trainer.data.formats.ragged_files import find_ragged, pad_ragged, write_ragged
from worker.trainer.data.source import Field
from worker.trainer.errors import DataError
from worker.trainer.tools.convert import main as convert
from worker.trainer.tools.inspect import inspect
from worker.trainer.tools.padding import pad

CPU = torch.device("cpu")
GIB = 2**30
VALUES: dict[str, tuple[tuple[int, ...], str]] = {
    "numbers": ((), "float32"),
    "bytes in rows": ((4,), "uint8"),
    "planes": ((2, 3), "float16"),
    "flags": ((), "bool"),
}
Samples = list[NDArray[Any]]


def samples_of(kind: str, count: int = 100) -> Samples:
    """Of 0 to 9 values, so that some are empty."""
    random, (shape, dtype) = np.random.default_rng(3), VALUES[kind]
    lengths = [0, 9, *random.integers(0, 10, count - 3), 0]
    return [random.integers(0, 99, (length, *shape)).astype(dtype) for length in lengths]


def write(path: Path, samples: Samples) -> Path:
    with h5py.File(path, "w") as file:
        write_ragged(file, "atoms", samples)
        file["targets"] = np.random.default_rng(1).normal(size=(len(samples), 4)).astype(np.float32)
    return path


@pytest.fixture
def molecules(tmp_path):
    return write(tmp_path / "molecules.h5", samples_of("bytes in rows"))


@pytest.fixture(params=[1, 400, 2**26], ids="{} bytes at once".format)
def _at_once(request, monkeypatch):
    monkeypatch.setattr(ragged_files, "PIECE_BYTES", request.param)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("kind", VALUES)
def test_every_sample_lies_where_the_offsets_say(tmp_path, kind):
    samples, (shape, dtype) = samples_of(kind), VALUES[kind]
    path = write(tmp_path / "a.h5", samples)
    ragged = find_ragged(path, ["atoms", "targets", "none"])["atoms"]
    assert ragged.value == Field(shape, np.dtype(dtype))
    assert ragged.lengths.tolist() == [len(sample) for sample in samples]
    with h5py.File(path) as file:
        assert file["atoms/values"].dtype == dtype
        parts = np.split(file["atoms/values"][:], ragged.offsets[1:-1])
    assert [part.tolist() for part in parts] == [sample.tolist() for sample in samples]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("length", [1, 5, 9, 12])
def test_padded_samples_have_one_length(tmp_path, kind, length):
    samples, (shape, dtype) = samples_of(kind), VALUES[kind]
    with h5py.File(write(tmp_path / "a.h5", samples), "r+") as file:
        pad_ragged(file, "atoms", "padded", length, fill=1)
        padded = file["padded"][:]
    assert (padded.shape, padded.dtype) == ((len(samples), length, *shape), dtype)
    for row, sample in zip(padded, samples, strict=True):
        kept = min(length, len(sample))
        assert (row[:kept] == sample[:length]).all()
        assert (row[kept:] == 1).all()


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([], "at least one"),
        ([np.ones(3), np.float64(1)], "at least one"),
        ([np.ones((3, 2)), np.ones((3, 4))], "one shape"),
        ([np.ones(3), np.ones(3, np.int8)], "one type"),
        ([np.array([b"C", b"H"])], "native booleans"),
        ([np.ones((3, 0))], "at least one in each value"),
        ([np.ones(3, ">f4")], "native booleans"),
    ],
)
def test_what_is_no_ragged_array_is_not_written(tmp_path, samples, told):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        with pytest.raises(DataError, match=told):
            write_ragged(file, "atoms", samples)
        assert list(file) == []


def test_only_a_ragged_array_is_padded(molecules):
    with h5py.File(molecules, "r+") as file:
        for name in ("targets", "none"):
            with pytest.raises(DataError, match=f"no ragged array '{name}'"):
                pad_ragged(file, name, "padded", 3)
        with pytest.raises(DataError, match="length of 0"):
            pad_ragged(file, "atoms", "padded", 0)
        assert "padded" not in file


def test_a_file_is_written_with_ragged_arrays_at_one_length(molecules, tmp_path):
    made = pad(molecules, tmp_path / "out.h5", 4, None)
    samples = samples_of("bytes in rows")
    longer = sum(len(sample) > 4 for sample in samples)
    assert made["told"] == [f"{longer:,} samples are longer and were cut."]
    with h5py.File(molecules) as file, h5py.File(made["path"]) as out:
        assert sorted(out) == sorted(file)
        assert (out["targets"][:] == file["targets"][:]).all()
        for row, sample in zip(out["atoms"][:], samples, strict=True):
            assert (row[: len(sample)] == sample[:4]).all()
            assert not row[len(sample) :].any()
    for name in ("targets", "none"):
        with pytest.raises(DataError, match=f"no ragged array '{name}'; it has atoms"):
            pad(molecules, tmp_path / "other.h5", 4, name)
    with pytest.raises(DataError, match=r"no ragged array; it has none at all"):
        pad(tmp_path / "out.h5", tmp_path / "other.h5", 4, None)
    assert not (tmp_path / "other.h5").exists()


def test_the_inspection_tells_how_long_samples_are(molecules):
    report, samples = inspect(molecules), samples_of("bytes in rows")
    assert report["problems"] == report["warnings"] == []
    assert report["samples"] == 100
    atoms, values = report["fields"]["atoms"], np.concatenate(samples)
    assert (atoms["shape"], atoms["dtype"], atoms["sorted"]) == ([4], "uint8", None)
    assert atoms["lengths"] == {
        "min": 0, "mean": len(values) / 100, "max": 9, "std": np.std([len(one) for one in samples])
    }  # fmt: skip
    assert atoms["stored_bytes"] == values.nbytes + 101 * 8
    assert atoms["mean"] == pytest.approx(values.mean())
    assert report["fields"]["targets"]["lengths"] is None
    assert report["read_probe"]["bytes"] == max(values.nbytes, 100 * 4 * 4)


def test_values_that_slide_are_no_windows(tmp_path):
    slides = np.lib.stride_tricks.sliding_window_view(np.random.default_rng(0).normal(size=90), 30)
    path = write(tmp_path / "a.h5", np.array_split(slides, 9))
    assert inspect(path)["layout"]["window_steps"] == {}


def test_samples_that_are_all_empty_are_a_dataset(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        write_ragged(file, "atoms", [np.ones((0, 4), np.uint8)] * 3)
    report = inspect(tmp_path / "a.h5")
    assert report["problems"] == []
    assert (report["samples"], report["read_probe"]) == (3, None)
    assert report["fields"]["atoms"]["lengths"] == {"min": 0, "mean": 0.0, "max": 0, "std": 0.0}


def test_a_file_without_samples_is_told(molecules):
    with h5py.File(molecules, "r+") as file:
        spoil(file["atoms"], "offsets", np.zeros(1, np.int64))
        spoil(file["atoms"], "values", np.ones((0, 4)))
        del file["targets"]
    assert [problem["code"] for problem in inspect(molecules)["problems"]] == ["no_samples"]


def test_what_else_lies_in_the_group_is_left_out_with_a_warning(molecules):
    with h5py.File(molecules, "r+") as file:
        file["atoms/names"] = np.ones(7)
    report = inspect(molecules)
    assert sorted(report["fields"]) == ["atoms", "targets"]
    assert report["problems"] == []
    assert [warning["code"] for warning in report["warnings"]] == ["unusable_array"]
    assert "'atoms/names'" in report["warnings"][0]["message"]


def test_huge_chunks_are_refused(molecules):
    with h5py.File(molecules, "r+") as file:
        del file["atoms/values"], file["atoms/offsets"]
        count = 2**28
        file["atoms"].create_dataset("values", (count, 4), np.uint8, chunks=(count + 1, 4),
                                     maxshape=(None, 4))  # fmt: skip
        file["atoms/offsets"] = np.linspace(0, count, 101).astype(np.int64)
    [problem] = inspect(molecules)["problems"]
    assert problem["code"] == "huge_chunks"
    assert "'atoms/values'" in problem["message"]


def spoil(group: h5py.Group, part: str, array: Any) -> None:
    del group[part]
    group[part] = array


OFFSETS = np.arange(0, 101 * 3, 3, dtype=np.int64)
FALLING = OFFSETS.copy()
FALLING[7] = 1
WRAPPING = OFFSETS.copy()
WRAPPING[7:9] = 2**63 - 1, -(2**63)
BROKEN: dict[str, tuple[str, Any, str]] = {
    "begin late": ("offsets", OFFSETS + 1, "begin with 1, not with 0"),
    "fall": ("offsets", FALLING, "fall: sample 6 would end before it begins"),
    "fall so far that a difference wraps": ("offsets", WRAPPING, "fall: sample 7 would"),
    "point beyond": ("offsets", OFFSETS * 2, "end with 600, and 300 values"),
    "end early": ("offsets", OFFSETS // 3, "end with 100, and 300 values"),
    "narrow": ("offsets", OFFSETS.astype(np.int32), "not one int64 for each sample, and one more"),
    "floats": ("offsets", OFFSETS.astype(float), "not one int64 for each sample, and one more"),
    "a table": ("offsets", OFFSETS[:, None], "not one int64 for each sample, and one more"),
    "none at all": ("offsets", OFFSETS[:0], "not one int64 for each sample, and one more"),
    "one number": ("offsets", np.int64(3), "'offsets' that is a single value"),
    "words": ("values", np.array([b"C"] * 300), "'values' that has dtype"),
    "elsewhere": ("values", h5py.ExternalLink("other.h5", "values"), "no array 'values' of its"),
    "a group": ("values", None, "no array 'values' of its own"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_group_that_does_not_hold_together_is_a_finding(tmp_path, unstopped, kind):
    path = write(tmp_path / "a.h5", [np.ones((3, 4), np.uint8)] * 100)
    part, array, told = BROKEN[kind]
    with h5py.File(path, "r+") as file:
        if array is None:
            del file["atoms"][part]
            file["atoms"].create_group(part)
        else:
            spoil(file["atoms"], part, array)
    [problem] = inspect(path)["problems"]
    assert problem["code"] == "damaged_ragged"
    assert told in problem["message"]
    assert "Write the group again, with 'values'" in problem["message"]
    spec = make_spec({"inputs": ["atoms"]})
    with pytest.raises(DataError, match=told):
        open_data(spec, {"numbers": entry(path)}, CPU, unstopped, GIB)


@pytest.mark.parametrize("version", [2, "one", [1, 1]])
def test_a_format_that_is_not_known_is_told(molecules, version):
    with h5py.File(molecules, "r+") as file:
        file["atoms"].attrs["ragged"] = version
    [problem] = inspect(molecules)["problems"]
    assert problem["code"] == "damaged_ragged"
    assert "only 1 is known" in problem["message"]


def test_other_lengths_do_not_belong_together(molecules):
    with h5py.File(molecules, "r+") as file:
        spoil(file, "targets", np.ones((101, 4)))
    assert [problem["code"] for problem in inspect(molecules)["problems"]] == ["length_mismatch"]


def test_what_is_beside_it_and_what_is_padded_trains(molecules, unstopped):
    with h5py.File(molecules, "r+") as file:
        pad_ragged(file, "atoms", "padded", 9)
        expected = file["padded"][:16]
    spec = make_spec({"inputs": ["padded"], "loader": {"kind": "chunked", "shuffle": "none"}},
                     training={"batch_size": 16})  # fmt: skip
    data = open_data(spec, {"numbers": entry(molecules)}, CPU, unstopped, GIB)
    assert (next(data.train.iterate(0)).arrays["padded"].numpy() == expected).all()
    data.close()


def test_it_is_not_converted(molecules, tmp_path, capsys):
    assert convert([str(molecules), str(tmp_path / "out.h5")]) == 1
    assert "the ragged array 'atoms', which is not written anew" in capsys.readouterr().err
    assert not (tmp_path / "out.h5").exists()
