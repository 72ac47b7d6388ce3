"""Arrow files as sources: the same samples and batches as those of an HDF5 file."""

import contextlib
import os

import numpy as np
import psutil
import pyarrow
import pytest
import torch

from app.guard.facts import FieldFacts
from app.guard.reads import Reading, read_amplification
from tests.trainer_data.factories import entry, kept, make_spec
from tests.trainer_data.formats.arrow_files import PACKINGS, table, write, write_folder, write_hdf5
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed.rows import in_file_order, read_rows
from worker.trainer.data.formats.arrow_index import OpenFile, read_index
from worker.trainer.data.formats.arrow_source import ArrowSource
from worker.trainer.data.order import Order
from worker.trainer.data.source import Extent, Extents
from worker.trainer.errors import DataError, DatasetChanged, SpecMismatch

CPU = torch.device("cpu")
GIB = 2**30
SAMPLES = 500
RANDOM = np.random.default_rng(5)
ARRAYS = {
    "features": RANDOM.normal(size=(SAMPLES, 6, 3)).astype(np.float32),
    "targets": RANDOM.normal(size=(SAMPLES, 4)).astype(np.float32),
}
TYPES = {
    "bool": RANDOM.random((SAMPLES, 3)) > 0.5,
    "flags": RANDOM.random(SAMPLES) > 0.5,
    "int8": RANDOM.integers(-9, 9, (SAMPLES, 2, 3), np.int8),
    "uint16": RANDOM.integers(0, 2**16, SAMPLES, np.uint16),
    "float16": RANDOM.normal(size=(SAMPLES, 5)).astype(np.float16),
    "float64": RANDOM.normal(size=SAMPLES),
    "int64": RANDOM.integers(0, 9, SAMPLES),
    "large": RANDOM.integers(0, 255, (SAMPLES, 70_000), np.uint8),
}
ROWS = {
    "all": np.arange(SAMPLES),
    "one": np.array([33]),
    "a range": np.arange(20, 333),
    "scattered": np.sort(RANDOM.choice(SAMPLES, 60, replace=False)),
    "nearly all": np.sort(RANDOM.choice(SAMPLES, 470, replace=False)),
}


@contextlib.contextmanager
def opened(path, names):
    with contextlib.closing(ArrowSource(read_index(path).of(names))) as source:
        yield source


def read_all(source, rows, places=None):
    out = {n: np.zeros((len(rows), *f.shape), f.dtype) for n, f in source.fields.items()}
    read_rows(source, rows, out, places)
    return out


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("how", ["in order", "placed"])
def test_rows_are_read_to_the_last_bit_and_stay_narrow(tmp_path, packing, how):
    folder = write_folder(tmp_path / "data", TYPES, packing)
    with opened(folder, TYPES) as source:
        for rows in ROWS.values():
            places = RANDOM.permutation(len(rows)) if how == "placed" else np.arange(len(rows))
            out = read_all(source, rows, places)
            for name, array in TYPES.items():
                assert out[name].dtype == array.dtype
                assert out[name][places].tobytes() == array[rows].tobytes()


RESIDENT = {"kind": "chunked", "residency": "resident"}
STREAM = {"kind": "chunked", "residency": "stream", "chunk_size": "8KiB"}
PROCESS = {"kind": "dataloader", "num_workers": 1, "multiprocessing_context": "forkserver"}


@pytest.mark.parametrize("packing", ["lz4", None])
@pytest.mark.parametrize(
    "loader",
    [
        *({**kind, "shuffle": how} for kind in (RESIDENT, STREAM) for how in ("full", "none")),
        *({**kind, "shuffle": "block", "shuffle_group": 32} for kind in (RESIDENT, STREAM)),
        *({"kind": "dataloader", "shuffle": how} for how in ("full", "none")),
        {**PROCESS, "shuffle": "full"},
    ],
    ids=lambda loader: "-".join(map(str, loader.values())),
)
def test_batches_are_those_of_the_same_arrays_in_hdf5(tmp_path, unstopped, packing, loader):
    split = {"method": "chronological", "validation_fraction": 0.2, "test_fraction": 0.1}
    spec = make_spec({"loader": loader, "split": split}, training={"batch_size": 16})
    seen = []
    for path in (
        write_hdf5(tmp_path / "a.h5", **ARRAYS),
        write_folder(tmp_path / "data", ARRAYS, packing),
    ):
        data = open_data(spec, {"numbers": entry(path)}, CPU, unstopped, GIB)
        assert data.validation is not None
        assert data.test is not None
        moments = data.statistics(list(ARRAYS), unstopped).values()
        parts = [data.train.iterate(0), data.train.iterate(1, 48), data.validation.iterate(0)]
        batches = [batch for part in parts for batch in kept(part)] + kept(data.test.iterate(0))
        seen.append(([each for pair in moments for each in pair], batches))
        data.close()
    (expected, batches), (found, arrow_batches) = seen
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert len(batches) == len(arrow_batches) > 40
    for one, other in zip(batches, arrow_batches, strict=True):
        assert one.size == other.size
        assert all(torch.equal(array, other.arrays[name]) for name, array in one.arrays.items())


def beside(count):
    """Columns of all the layouts that a file may have, which are not read."""
    words = [f"word {number}" * (number % 7) for number in range(count)]
    fours = pyarrow.array(np.arange(count, dtype=np.int32))
    return {
        "text": words,
        "views": pyarrow.array([word * 5 for word in words], pyarrow.string_view()),
        "codes": pyarrow.array(words).dictionary_encode(),
        "lists": pyarrow.array([[1] * (number % 3) for number in range(count)]),
        "pairs": pyarrow.array([{"a": 1, "b": "x"}] * count),
        "map": pyarrow.array([[("k", 1)]] * count, pyarrow.map_(pyarrow.string(), pyarrow.int8())),
        "nothing": pyarrow.nulls(count),
        "gaps": pyarrow.array([None, *range(count - 1)]),
        "times": pyarrow.array(range(count), pyarrow.timestamp("ns")),
        "union": pyarrow.UnionArray.from_dense(
            pyarrow.array(np.zeros(count, np.int8)), fours, [fours]
        ),
        "runs": pyarrow.RunEndEncodedArray.from_arrays([count], [3]),
    }


@pytest.mark.parametrize("packing", PACKINGS)
def test_columns_beside_the_data_are_passed_over(tmp_path, packing):
    x, columns = np.arange(100.0), beside(100)
    path = write(tmp_path / "a.arrow", table(**columns, x=x), packing, rows=100)
    plain = {n: c for n, c in columns.items() if n not in ("union", "runs")}
    cut = write(tmp_path / "b.arrow", table(**plain, x=x), packing)
    for each, left_out in ((path, columns), (cut, plain)):
        assert set(read_index(each).left_out) == set(left_out) - {"gaps"}
        with opened(each, ["x"]) as source:
            assert read_all(source, np.arange(100))["x"].tolist() == x.tolist()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("text", "'text' of .* is string, not a boolean, an integer, a float or bytes of a fixed"),
        ("codes", "is a dictionary .*; write its codes as integers"),
        (
            "lists",
            "has lists of any length .*; where all have one length, cast them .* ragged array",
        ),
        ("times", "not a boolean"),
    ],
)
def test_what_is_no_array_is_refused_with_what_to_do(tmp_path, name, told):
    path = write(tmp_path / "a.arrow", table(**beside(100), x=np.arange(100)), rows=100)
    with pytest.raises(DataError, match=told):
        read_index(path).of([name])


@pytest.mark.parametrize("packing", PACKINGS)
def test_missing_values_end_the_reading(tmp_path, packing):
    """Of samples, and of numbers within samples."""
    gaps = pyarrow.array([*range(50), None, *range(49)])
    pairs = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([*range(150), None] + [0] * 49), 2)
    path = write(tmp_path / "a.arrow", table(gaps=gaps, pairs=pairs, x=np.arange(100)), packing)
    for name, first in (("gaps", 50), ("pairs", 75)):
        with opened(path, [name]) as source:
            read_all(source, np.arange(30))
            told = f"{name!r} of .* has 1 missing values .* in a record batch of a.arrow; fill or"
            with pytest.raises(DataError, match=told):
                read_all(source, np.array([first]))


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_bits_are_read_as_their_bytes(tmp_path, packing):
    """Planes of a board game, a bit a square: as they lie, and as narrow."""
    bits = RANDOM.random((SAMPLES, 18, 64)) > 0.7
    packed = np.packbits(bits, axis=2)
    planes = pyarrow.FixedSizeBinaryArray.from_buffers(
        pyarrow.binary(8), SAMPLES * 18, [None, pyarrow.py_buffer(packed.tobytes())]
    )
    whole = pyarrow.FixedSizeBinaryArray.from_buffers(
        pyarrow.binary(18 * 8), SAMPLES, [None, pyarrow.py_buffer(packed.tobytes())]
    )
    lists = pyarrow.FixedSizeListArray.from_arrays(planes, 18)
    folder = write_folder(tmp_path / "data", {"planes": lists, "whole": whole}, packing)
    with opened(folder, ["planes", "whole"]) as source:
        assert source.fields["planes"].shape == (18, 8)
        assert source.fields["whole"].shape == (18 * 8,)
        for rows in ROWS.values():
            found = read_all(source, rows)
            assert {array.dtype.name for array in found.values()} == {"uint8"}
            assert (found["planes"] == packed[rows]).all()
            assert (np.unpackbits(found["whole"], axis=1) == bits[rows].reshape(-1, 18 * 64)).all()


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path):
    path = write(tmp_path / "a.arrow", table(x=np.arange(9), y=np.arange(9)))
    with pytest.raises(SpecMismatch, match=r"no column 'z' \(it has x, y\)"):
        read_index(path).of(["z"])


def test_two_columns_of_one_name_are_no_array(tmp_path):
    twice = pyarrow.table([[1, 2], [3, 4]], names=["x", "x"])
    with pytest.raises(DataError, match="name of several columns"):
        read_index(write(tmp_path / "a.arrow", twice)).of(["x"])


def test_tensors_have_their_shape(tmp_path):
    planes = RANDOM.integers(0, 2, (100, 4, 8, 8), np.uint8)
    made = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(planes)
    turned = pyarrow.ExtensionArray.from_storage(
        pyarrow.fixed_shape_tensor(pyarrow.uint8(), (4, 8, 8), permutation=[2, 0, 1]), made.storage
    )
    path = write(tmp_path / "a.arrow", table(planes=made, turned=turned))
    with opened(path, ["planes"]) as source:
        assert source.fields["planes"].shape == (4, 8, 8)
        assert (read_all(source, np.arange(100))["planes"] == planes).all()
    with pytest.raises(DataError, match="axes are stored in another order"):
        read_index(path).of(["turned"])


@pytest.mark.parametrize(
    "version", [pyarrow.ipc.MetadataVersion.V4, pyarrow.ipc.MetadataVersion.V5]
)
@pytest.mark.parametrize("legacy", [True, False])
def test_what_older_versions_wrote_is_read(tmp_path, version, legacy):
    path = write(
        tmp_path / "a.arrow", table(x=np.arange(100)), None,
        metadata_version=version, use_legacy_format=legacy,
    )  # fmt: skip
    with opened(path, ["x"]) as source:
        assert read_all(source, np.arange(100))["x"].tolist() == list(range(100))


def test_record_batches_without_rows_do_not_count(tmp_path):
    path, whole = tmp_path / "a.arrow", table(x=np.arange(5))
    with pyarrow.ipc.new_file(path, whole.schema) as writer:
        for part in (whole.slice(0, 0), whole.slice(0, 3), whole.slice(3, 0), whole.slice(3)):
            writer.write_batch(part.to_batches()[0] if part.num_rows else empty(whole.schema))
    with opened(path, ["x"]) as source:
        assert read_all(source, np.arange(5))["x"].tolist() == [0, 1, 2, 3, 4]


def empty(schema):
    return pyarrow.RecordBatch.from_pylist([], schema)


def test_samples_are_numbered_in_the_order_of_the_names(tmp_path):
    for name, number in (("b.arrow", 2), ("a.feather", 1), ("c.ipc", 3)):
        write(tmp_path / "data" / name, table(x=np.array([number])))
    write(tmp_path / "data" / ".c.ipc", table(other=np.array([number])))
    (tmp_path / "data" / "readme.txt").write_text("numbers")
    (tmp_path / "data" / "more").mkdir()
    with opened(tmp_path / "data", ["x"]) as source:
        assert read_all(source, np.arange(3))["x"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("packing", PACKINGS)
def test_more_files_than_may_be_open_are_read_in_turn(tmp_path, packing, monkeypatch):
    monkeypatch.setattr("worker.trainer.data.formats.arrow_source.MOST_OPEN", 2)
    folder = write_folder(tmp_path / "data", ARRAYS, packing, 7)
    with opened(folder, ARRAYS) as source:
        for rows in ROWS.values():
            out = read_all(source, rows)
            assert (out["features"] == ARRAYS["features"][rows]).all()
            assert 1 <= len(held()) <= 2
    assert held() == []


def held():
    return [file.path for file in psutil.Process().open_files() if "part-" in file.path]


@pytest.mark.parametrize(("kind", "chunk"), [("none", 128), ("full", 128), ("full", 256)])
def test_a_record_batch_is_read_as_often_as_the_guard_reckons(tmp_path, kind, chunk, monkeypatch):
    """Each time it is read from one chunk to the next, but not from one piece to the next, however
    large it is.
    """
    monkeypatch.setattr("app.guard.reads.CHUNK_CACHE_BYTES", 1)
    folder = write_folder(tmp_path / "data", ARRAYS)
    read = list[int]()

    def count(file, number):
        batch = honest(file, number)
        read.append(batch.num_rows)
        return batch

    honest = OpenFile.batch
    index = read_index(folder).of(["features"])
    monkeypatch.setattr(OpenFile, "batch", count)
    order = Order(SAMPLES, 1, kind)
    with contextlib.closing(ArrowSource(index)) as source:
        for start in range(0, SAMPLES, chunk):
            rows, _ = in_file_order(order.rows(0, start, min(start + chunk, SAMPLES)))
            for piece in range(0, len(rows), 20):
                read_all(source, rows[piece : piece + 20])
    within = 1.0 if kind == "none" else chunk / SAMPLES
    array = FieldFacts((6, 3), "float32", "record_batches", 30)
    reckoned = read_amplification(array, 30, Reading(within, 1.0, 1, 20))
    assert sum(read) / SAMPLES == pytest.approx(reckoned, rel=0.2)


@pytest.mark.parametrize("what", ["written", "cut short", "replaced", "gone"])
@pytest.mark.parametrize("packing", ["lz4", None])
def test_a_file_that_changes_under_way_ends_the_reading(tmp_path, what, packing):
    folder = write_folder(tmp_path / "data", ARRAYS, packing)
    last = folder / "part-03.feather"
    with opened(folder, ARRAYS) as source:
        read_all(source, np.arange(SAMPLES))
        if what == "written":
            os.utime(last, ns=(1, 1))
        elif what == "cut short":
            os.truncate(last, 2_000)
        elif what == "gone":
            last.unlink()
        else:
            write(last, table(**{name: array[:100] for name, array in ARRAYS.items()}))
        assert read_all(source, np.arange(20))["targets"].tobytes() == (
            ARRAYS["targets"][:20].tobytes()
        )
        with pytest.raises(DatasetChanged, match=r"part-03.feather (was changed|is gone)"):
            read_all(source, np.arange(SAMPLES - 20, SAMPLES))


@pytest.mark.parametrize("packing", ["lz4", None])
def test_a_file_that_is_cut_short_while_it_is_read_ends_the_reading(tmp_path, packing, monkeypatch):
    """Found by the read itself, or by the look at the file after it."""
    folder = write_folder(tmp_path / "data", ARRAYS, packing)

    def cut(file, number):
        os.truncate(folder / "part-03.feather", 2_000)
        return honest(file, number)

    honest = OpenFile.batch
    with opened(folder, ARRAYS) as source:
        monkeypatch.setattr(OpenFile, "batch", cut)
        with pytest.raises(DatasetChanged, match=r"part-03.feather was changed"):
            read_all(source, np.arange(SAMPLES))


@pytest.mark.parametrize("packing", ["lz4", "zstd"])
def test_what_cannot_be_unpacked_is_told_with_its_file(tmp_path, packing):
    folder = write_folder(tmp_path / "data", ARRAYS, packing)
    path = folder / "part-02.feather"
    with opened(folder, ["features"]) as source:
        before, data = path.stat(), path.read_bytes()
        # Of the first record batch, where the numbers' packed buffer begins with how many bytes
        # they are unpacked.
        place = data.index((30 * 18 * 4).to_bytes(8, "little"))
        for damage in (b"\xff" * 24, (10**15).to_bytes(8, "little")):
            with path.open("r+b") as file:
                file.seek(place + (8 if len(damage) > 8 else 0))
                file.write(damage)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            read_all(source, np.arange(5))
            with pytest.raises(DataError, match=r"cannot be read \(.*part-02.feather: "):
                read_all(source, np.arange(SAMPLES))


def test_a_reading_that_failed_leaves_a_source_that_can_be_closed(tmp_path):
    folder = write_folder(tmp_path / "data", ARRAYS)
    with opened(folder, ["features"]) as source:
        with pytest.raises(KeyError):
            source.read(Extents.of(Extent(0, 5, 0)), {})
        assert len(read_all(source, np.arange(5))["features"]) == 5
