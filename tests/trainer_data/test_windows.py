"""Windows that are kept as a series: the same samples and batches, in far less room."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from app.planning.residency import Need
from tests.trainer_data.factories import entry, kept, make_spec, samples_in
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed.rows import read_rows
from worker.trainer.data.formats.window_files import Windows
from worker.trainer.data.layouts.plain import PlainLayout
from worker.trainer.data.layouts.windows import WindowsLayout
from worker.trainer.data.source import Field
from worker.trainer.data.tensors import parts_to_copy
from worker.trainer.errors import DataError, DatasetChanged
from worker.trainer.tools.convert import convert, main
from worker.trainer.tools.inspect import inspect

CPU = torch.device("cpu")
GIB = 2**30
NAMES = ("features", "targets")
Array = NDArray[Any]


def slides(series: Array, length: int, step: int = 1) -> Array:
    view = np.lib.stride_tricks.sliding_window_view(series, length, 0)
    return np.ascontiguousarray(np.moveaxis(view, -1, 1)[::step])


def series_of(steps: int, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(steps, *shape)).astype(np.float32)


def with_odd_values() -> Array:
    series = series_of(90, 3)
    series[::7, 1], series[::5, 2], series[3::5, 2] = np.nan, 0.0, -0.0
    return slides(series, 8)


FEATURES: dict[str, Array] = {
    "one step": slides(series_of(130, 3), 12),
    "several steps": slides(series_of(300, 3), 12, step=5),
    "back": slides(series_of(130, 3), 12)[::-1],
    "repeated rows": slides(series_of(130, 3), 12).repeat(2, axis=0),
    "several series": np.concatenate([slides(series_of(90, 3, seed=s), 12) for s in range(3)]),
    "single rows between": np.insert(
        slides(series_of(140, 3), 12), [40, 90], series_of(12, 3, seed=9), axis=0
    ),
    "no numbers, and signs of zero": with_odd_values(),
    "bytes": slides(np.random.default_rng(1).integers(0, 255, (120, 4), np.uint8), 12),
    "flat": slides(series_of(130), 12),
    "planes": slides(series_of(130, 2, 3), 12),
}


def write(path: Path, **arrays: Array) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
            file[name].attrs["unit"] = "m"
        file.attrs["station"] = "north"
    return path


def write_pair(folder: Path, features: Array | None = None) -> tuple[Path, Path]:
    """A file of windows, and the series it is converted to; its targets are plain rows."""
    if features is None:
        features = slides(series_of(211, 3), 12)
    targets = series_of(len(features), 4, seed=5)
    path = write(folder / "windows.h5", features=features, targets=targets)
    out = folder / "series.h5"
    convert(path, out)
    return path, out


def read_all(path: Path, rows: Array | None = None) -> dict[str, Array]:
    with contextlib.closing(samples_in(path)) as source:
        rows = np.arange(source.num_samples) if rows is None else rows
        out = {n: np.empty((len(rows), *f.shape), f.dtype) for n, f in source.fields.items()}
        read_rows(source, rows, out)
        return out


@pytest.mark.parametrize("kind", FEATURES)
def test_every_sample_stays_the_same_to_the_last_bit(tmp_path, kind):
    features = FEATURES[kind]
    path, out = write_pair(tmp_path, features)
    assert [array.tobytes() for array in read_all(out).values()] == [
        array.tobytes() for array in read_all(path).values()
    ]
    few = np.array([0, 3, 4, 5, 30, len(features) - 1])
    assert read_all(out, few)["features"].tobytes() == features[few].tobytes()
    with h5py.File(out) as file:
        stretches = 3 if kind in ("several series", "single rows between") else 1
        assert file["features/series"].size < features.size / 2 * stretches
        assert file["features/series"].dtype == features.dtype
        assert dict(file.attrs) == {"station": "north"}
        assert file["features"].attrs["unit"] == file["targets"].attrs["unit"] == "m"


def test_what_is_kept_is_a_hundredth(tmp_path):
    path = write(tmp_path / "windows.h5", features=slides(series_of(2_000, 4), 360))
    made = convert(path, tmp_path / "series.h5")
    assert made["series"]["features"] == {"window_length": 360, "steps": 2_000, "samples": 1_641}
    assert made["bytes"] == (tmp_path / "series.h5").stat().st_size
    assert made["bytes_before"] / made["bytes"] > 100


def test_windows_larger_than_a_piece_are_converted_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("worker.trainer.tools.convert.PIECE_BYTES", 1_000)
    for kind in ("back", "several series", "repeated rows"):
        path, out = write_pair(tmp_path, FEATURES[kind])
        assert read_all(out)["features"].tobytes() == read_all(path)["features"].tobytes()
        out.unlink()


@pytest.mark.parametrize(
    ("length", "numbers", "parts"),
    [(12, 2_000, 1), (12, 10_000, 4), (13, 4_000, 13), (3, 40_000, 1), (32_768, 1, 2)],
)
def test_what_is_large_is_cut_into_parts_that_a_thread_copies(length, numbers, parts):
    """As a window of a series, and as a row of a table."""
    assert parts_to_copy(length, numbers, CPU) == parts
    assert parts_to_copy(length, numbers, torch.device("cuda")) == 1
    series = series_of(length + 10, numbers)
    windows = Windows(length, np.arange(11), len(series), Field((numbers,), np.dtype("f4")))
    held = WindowsLayout("features", windows).hold(np.arange(2, 11), CPU)
    held.series.copy_(torch.from_numpy(series[2:]))
    chosen = torch.tensor([7, 0, 7, 8])
    expected = torch.stack([torch.from_numpy(series[2 + n : 2 + n + length]) for n in chosen])
    found = torch.empty(4, length, numbers)
    held.gather(chosen, {"features": found})
    assert torch.equal(found, expected)

    rows = PlainLayout("features", windows.field, 4).hold(np.arange(4), CPU)
    rows.rows["features"].copy_(expected)
    order = torch.tensor([3, 1, 1])
    found = torch.empty(3, length, numbers)
    rows.gather(order, {"features": found})
    assert torch.equal(found, expected[order])


RESIDENT = {"kind": "chunked", "residency": "resident"}
STREAM = {"kind": "chunked", "residency": "stream", "chunk_size": "4KiB"}
PROCESS = {"num_workers": 1, "multiprocessing_context": "forkserver"}


@pytest.mark.parametrize(
    ("kept_as", "shuffle"),
    [
        *((loader, shuffle) for loader in (RESIDENT, STREAM) for shuffle in ("full", "none")),
        *(({**loader, "shuffle_group": 32}, "block") for loader in (RESIDENT, STREAM)),
        ({"kind": "dataloader"}, "full"),
        ({"kind": "dataloader", **PROCESS}, "none"),
        ({"kind": "dataloader", **PROCESS}, "full"),
    ],
)
def test_batches_are_those_of_the_windows(tmp_path, unstopped, kept_as, shuffle):
    loader = {**kept_as, "shuffle": shuffle}
    split = {"method": "chronological", "validation_fraction": 0.2, "test_fraction": 0.1}
    spec = make_spec({"loader": loader, "split": split}, training={"batch_size": 16})
    seen = []
    for path in write_pair(tmp_path):
        data = open_data(spec, {"numbers": entry(path)}, CPU, unstopped, GIB)
        assert data.validation is not None
        assert data.test is not None
        parts = [data.train.iterate(0), data.train.iterate(1, 48), data.validation.iterate(0)]
        seen.append([kept(part) for part in parts] + [kept(data.test.iterate(0))])
        assert data.describe().get("residency") == kept_as.get("residency")
        data.close()
    for expanded, windows in zip(*seen, strict=True):
        assert len(expanded) == len(windows) > 1
        for one, other in zip(expanded, windows, strict=True):
            assert one.size == other.size
            assert one.arrays.keys() == other.arrays.keys()
            for name, array in one.arrays.items():
                assert torch.equal(array, other.arrays[name])
                assert other.arrays[name].is_contiguous()


def test_windows_alone_need_no_plain_array(tmp_path, unstopped):
    features = slides(series_of(100, 3), 12)
    path = write(tmp_path / "w.h5", features=features, targets=slides(series_of(92, seed=2), 4))
    convert(path, tmp_path / "s.h5")
    spec = make_spec(training={"batch_size": 80})
    data = open_data(spec, {"numbers": entry(tmp_path / "s.h5")}, CPU, unstopped, GIB)
    rows = data.train.iterate(0)
    assert len(next(rows).arrays["targets"]) == 71
    assert data.describe()["series_steps"] == {"features": 100, "targets": 92}
    data.close()


def test_a_series_is_resident_where_its_windows_would_stream(tmp_path, unstopped):
    path, out = write_pair(tmp_path, slides(series_of(2_000, 3), 50))
    budget = path.stat().st_size // 2
    chosen = []
    for one in (path, out):
        data = open_data(make_spec(), {"numbers": entry(one)}, CPU, unstopped, budget)
        chosen.append(data.describe()["residency"])
        assert sum(batch.size for batch in data.train.iterate(0)) == 1_561
        data.close()
    assert chosen == ["stream", "resident"]
    need = Need(600, 1, 80, (20,), saved_bytes=50_000)
    assert need.resident_bytes == 100 * 600 - 50_000 + 80 * 8


@pytest.mark.parametrize("kind", ["one step", "several series", "flat", "planes", "bytes"])
def test_statistics_are_those_of_the_windows(tmp_path, unstopped, kind, monkeypatch):
    monkeypatch.setattr("app.planning.residency.PIECE_BYTES", 500)
    monkeypatch.setattr("worker.trainer.data.feed.rows.PIECE_BYTES", 500)
    found = []
    for path in write_pair(tmp_path, FEATURES[kind]):
        data = open_data(make_spec(), {"numbers": entry(path)}, CPU, unstopped, GIB)
        found.append(data.statistics(NAMES, unstopped))
        data.close()
    for name in NAMES:
        for expected, got in zip(found[0][name], found[1][name], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_windows_as_targets_have_one_mean_for_all_steps(tmp_path, unstopped):
    targets = slides(series_of(109, seed=3), 10)
    path = write(tmp_path / "w.h5", features=slides(series_of(111, 3), 12), targets=targets)
    convert(path, tmp_path / "s.h5")
    split = {"method": "chronological", "validation_fraction": 0.0}
    data = open_data(
        make_spec({"split": split}), {"numbers": entry(tmp_path / "s.h5")}, CPU, unstopped, GIB
    )
    mean, std = data.statistics(["targets"], unstopped)["targets"]
    data.close()
    assert mean.item() == pytest.approx(targets.mean(dtype=np.float64), rel=1e-12)
    assert std.item() == pytest.approx(targets.std(dtype=np.float64), rel=1e-12)


def test_a_value_that_is_no_number_is_refused_where_a_window_holds_it(tmp_path, unstopped):
    features = slides(series_of(111, 3), 12)
    features[20:32][np.arange(12), np.arange(11, -1, -1), 1] = np.nan  # one step of the series
    _, out = write_pair(tmp_path, features)
    data = open_data(make_spec(), {"numbers": entry(out)}, CPU, unstopped, GIB)
    with pytest.raises(DataError, match="NaN"):
        data.statistics(["features"], unstopped)
    data.close()


def test_the_inspection_tells_of_the_windows(tmp_path):
    path, out = write_pair(tmp_path)
    windows, series = inspect(path), inspect(out)
    assert series["problems"] == series["warnings"] == []
    for name in NAMES:
        stored = {"series_steps", "stored_bytes"}
        one, other = windows["fields"][name], series["fields"][name]
        assert {k: v for k, v in one.items() if k not in stored} == {
            k: v for k, v in other.items() if k not in stored
        }
    assert series["fields"]["features"]["series_steps"] == 211
    assert series["fields"]["targets"]["series_steps"] is None
    for name in ("samples", "layout"):
        assert series[name] == windows[name]
    assert series["read_probe"]["bytes"] == windows["read_probe"]["bytes"]


def spoil(file: h5py.File, kind: str) -> None:
    group = file["features"]
    starts = group["starts"][:]
    if kind in ("beyond the end", "before the start"):
        starts[7] = 300 if kind == "beyond the end" else -1
        group["starts"][:] = starts
    elif kind == "no starts":
        del group["starts"]
    elif kind == "starts in a table":
        del group["starts"]
        group["starts"] = starts[:, None]
    elif kind == "starts of another type":
        del group["starts"]
        group["starts"] = starts.astype(np.int32)
    elif kind == "no length":
        group.attrs["window_length"] = 0
    elif kind == "a length that is none":
        group.attrs["window_length"] = "twelve"
    elif kind == "longer than the series":
        group.attrs["window_length"] = 212
    elif kind == "words":
        del group["series"]
        group["series"] = np.array([b"a"] * 211)
    elif kind == "elsewhere":
        del group["series"]
        group["series"] = h5py.ExternalLink("other.h5", "series")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("beyond the end", "reach beyond"),
        ("before the start", "reach beyond"),
        ("no starts", "no array 'starts'"),
        ("starts in a table", "one int64 for each sample"),
        ("starts of another type", "one int64 for each sample"),
        ("no length", "of 0"),
        ("a length that is none", "no whole number"),
        ("longer than the series", "212"),
        ("words", "dtype"),
        ("elsewhere", "no array 'series'"),
    ],
)
def test_a_file_that_lies_is_told_apart(tmp_path, unstopped, kind, told):
    _, out = write_pair(tmp_path)
    with h5py.File(out, "r+") as file:
        spoil(file, kind)
    with pytest.raises(DataError, match=told):
        open_data(make_spec(), {"numbers": entry(out)}, CPU, unstopped, GIB)
    report = inspect(out)
    assert report["problems"]
    if kind != "elsewhere":
        assert told in report["problems"][0]["message"]


def test_arrays_of_other_lengths_do_not_belong_together(tmp_path, unstopped):
    _, out = write_pair(tmp_path)
    with h5py.File(out, "r+") as file:
        del file["targets"]
        file["targets"] = series_of(150, 4)
    with pytest.raises(DataError, match="differ in length"):
        open_data(make_spec(), {"numbers": entry(out)}, CPU, unstopped, GIB)
    assert [problem["code"] for problem in inspect(out)["problems"]] == ["length_mismatch"]


def test_a_file_that_changes_under_way_ends_the_reading(tmp_path):
    _, out = write_pair(tmp_path)
    with contextlib.closing(samples_in(out)) as source:
        os.utime(out, ns=(1, 1))
        buffers = {n: np.empty((5, *f.shape), f.dtype) for n, f in source.fields.items()}
        with pytest.raises(DatasetChanged):
            read_rows(source, np.arange(5), buffers)


def test_nothing_is_written_where_nothing_would_be_saved(tmp_path, capsys):
    plain = write(tmp_path / "plain.h5", features=series_of(200, 12, 3))
    assert main([str(plain), str(tmp_path / "out.h5")]) == 1
    assert "no array whose rows are overlapping windows" in capsys.readouterr().err
    _, series = write_pair(tmp_path)
    assert main([str(series), str(tmp_path / "out.h5")]) == 1
    assert "as a series already" in capsys.readouterr().err
    with h5py.File(plain, "r+") as file:
        file["else"] = h5py.ExternalLink("windows.h5", "features")
    assert main([str(plain), str(tmp_path / "out.h5")]) == 1
    assert "lies in another file" in capsys.readouterr().err
    assert main([str(tmp_path / "none.h5"), str(tmp_path / "out.h5")]) == 1
    assert "There is no file" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plain.h5", "series.h5", "windows.h5"]


def test_a_disk_that_refuses_is_told_and_leaves_nothing(tmp_path, capsys):
    path, _ = write_pair(tmp_path)
    (tmp_path / "file").write_text("")
    assert main([str(path), str(tmp_path / "file" / "out.h5")]) == 1
    assert "could not be written" in capsys.readouterr().err


def test_what_cannot_be_trained_on_is_left_out_and_named(tmp_path, capsys):
    path, out = write_pair(tmp_path)
    with h5py.File(path, "r+") as file:
        file["names"] = np.array([b"a"] * 200)
    assert main([str(path), str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == ["names"]
