"""What inspection says of good files and of bad ones; it never fails itself."""

import json
import os
import subprocess
import sys

import h5py
import hdf5plugin
import numpy as np
import pytest

from app.mounts import on_network
from tests.trainer_data.factories import write_arrays
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.tools.inspect import inspect


def write(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def codes(report, kind="problems"):
    return [finding["code"] for finding in report[kind]]


def test_a_good_file_is_described(tmp_path):
    path = write_arrays(tmp_path / "a.h5")
    report = inspect(path)
    assert codes(report) == codes(report, "warnings") == []
    assert report["samples"] == 100
    assert report["size_bytes"] == path.stat().st_size
    features = report["fields"]["features"]
    assert (features["shape"], features["dtype"]) == ([6, 3], "float32")
    assert (features["storage"], features["chunks"]) == ("contiguous", None)
    assert report["fields"]["targets"]["shape"] == [4]
    assert report["fingerprint"] == fingerprint(path)
    assert report["layout"]["kind"] == "arrays"
    assert report["read_probe"]["bytes"] == 100 * 6 * 3 * 4


def test_storage_is_told(tmp_path):
    path = write_arrays(tmp_path / "a.h5", chunks=True, compression="gzip")
    features = inspect(path)["fields"]["features"]
    assert (features["storage"], features["compression"]) == ("chunked", "gzip")
    assert features["chunks"] is not None


@pytest.mark.parametrize(
    ("packed", "name"),
    [
        ({"compression": "lzf", "shuffle": True}, "lzf"),
        (dict(hdf5plugin.Blosc2()), "blosc2"),
        (dict(hdf5plugin.Zstd()), "zstd"),
        ({"shuffle": True, "fletcher32": True}, None),
    ],
)
def test_the_filter_is_named(tmp_path, packed, name):
    report = inspect(write_arrays(tmp_path / "a.h5", chunks=True, **packed))
    assert codes(report) == []
    assert report["fields"]["features"]["compression"] == name


def test_a_filter_that_is_not_installed_is_named_with_what_to_do(tmp_path):
    """In a process of its own: HDF5 does not forget a filter."""
    path = write_arrays(tmp_path / "a.h5", chunks=True, **hdf5plugin.Zstd())
    code = (
        "import sys, json\n"
        "sys.modules['hdf5plugin'] = None\n"
        "from pathlib import Path\n"
        "from worker.trainer.tools.inspect import inspect\n"
        "print(json.dumps(inspect(Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    told = [finding["message"] for kind in ("problems", "warnings") for finding in report[kind]]
    assert any("packed by the filter zstd" in message for message in told), told
    assert any("pip install 'stoker[filters]'" in message for message in told)


def test_windows_of_one_series_are_recognized(tmp_path):
    series = np.random.default_rng(0).normal(size=(200, 3))
    windows = np.lib.stride_tricks.sliding_window_view(series, 30, 0).transpose(0, 2, 1)
    path = write(tmp_path / "a.h5", windows=windows, noise=np.random.rand(171, 30, 3),
                 flat=np.ones((171, 30)))  # fmt: skip
    layout = inspect(path)["layout"]
    assert layout["kind"] == "overlapping_windows"
    assert (layout["window_steps"], layout["overlap_ratios"]) == ({"windows": 1}, {"windows": 1.0})


@pytest.mark.parametrize("backward", [False, True])
def test_it_is_told_where_another_series_begins(tmp_path, backward):
    """The second is a hole in the first, over which windows still share steps."""
    series = np.random.default_rng(0).normal(size=(2, 300, 3))
    views = np.lib.stride_tricks.sliding_window_view(series, 30, 1).transpose(0, 1, 3, 2)
    rows = np.concatenate([views[0, :100], views[0, 110:], views[1]])
    path = write(tmp_path / "a.h5", windows=rows[::-1] if backward else rows)
    assert inspect(path)["layout"]["breaks"] == {"windows": [271 if backward else 261]}


@pytest.mark.parametrize("step", [1, 2, 7, 27])
@pytest.mark.parametrize("how", ["forth", "back", "newest step first", "gaps"])
def test_windows_are_recognized_however_far_each_is_moved_on(tmp_path, step, how):
    series = np.random.default_rng(0).normal(size=(900, 3))
    if how == "gaps":
        series[::5] = np.nan
    views = np.lib.stride_tricks.sliding_window_view(series, 30, 0).transpose(0, 2, 1)[::step]
    stations = np.concatenate([views, views[::-1][:1], views])  # two series, and a break between
    if how == "back":
        stations = stations[::-1]
    if how == "newest step first":
        stations = stations[:, ::-1]
    layout = inspect(write(tmp_path / "a.h5", windows=stations))["layout"]
    assert layout["window_steps"] == {"windows": step}
    assert 0.9 < layout["overlap_ratios"]["windows"] < 1.0


def of_each_row(row, count=300):
    return np.broadcast_to(row, (count, *np.shape(row)))


def between(rows, first, last):
    """Each begins and ends with the same steps, as sequences of words and tapered signals do."""
    rows[:, : len(first)], rows[:, -len(last) :] = first, last
    return rows


RANDOM = np.random.default_rng(0)
NO_WINDOWS = {
    "padded signals": between(RANDOM.normal(size=(300, 20)), [0.0], [0.0] * 3),
    "signals with a long taper": between(RANDOM.normal(size=(300, 20)), [0.0] * 5, [0.0] * 5),
    "words between marks": between(RANDOM.integers(5, 99, (300, 64)), [1, 2], [1, 2]),
    "framed pictures": between(RANDOM.integers(0, 255, (300, 28, 28)), [[0] * 28, [255] * 28],
                               [[0] * 28, [255] * 28]),
    "bits": RANDOM.integers(0, 2, (300, 6)),
    "one after the other": np.arange(1800).reshape(300, 6),
    "two shared steps of 360": np.lib.stride_tricks.sliding_window_view(
        RANDOM.normal(size=108_000), 360)[::358],
    "constant": np.repeat(RANDOM.normal(size=(300, 1)), 8, axis=1),
    "one row": np.ones((1, 30)),
    "all the same": of_each_row(RANDOM.normal(size=30)),
    "hours of two days": of_each_row(np.arange(48) % 24),
    "hours of a day and a half": (np.arange(36) + 36 * np.arange(300)[:, None]) % 24,
    "days of four weeks, as circles": of_each_row(np.sin((np.arange(28) % 7)[:, None] / [1, 2])),
    "kinds in turn": of_each_row([0, 1] * 8),
    "a ring of neighbours": of_each_row(np.roll(np.eye(16), 1, axis=1)),
    "both sides of a graph": of_each_row(np.indices((16, 16)).sum(0) % 2),
}  # fmt: skip


@pytest.mark.parametrize("rows", NO_WINDOWS.values(), ids=NO_WINDOWS.keys())
def test_what_only_looks_like_windows_is_none(tmp_path, rows):
    assert inspect(write(tmp_path / "a.h5", rows=rows))["layout"]["window_steps"] == {}


def test_values_that_are_no_numbers_are_a_warning(tmp_path):
    x = np.ones((50, 4), np.float32)
    x[10, 2], x[49, 3] = np.nan, np.inf
    report = inspect(write(tmp_path / "a.h5", x=x))
    assert codes(report) == []
    assert codes(report, "warnings") == ["nonfinite_values"]
    assert report["fields"]["x"]["nonfinite_count"] == 2


def test_arrays_beside_the_data_are_left_out(tmp_path):
    path = write(tmp_path / "a.h5", x=np.ones((9, 2)), names=np.array([b"a", b"b"]), year=2024)
    report = inspect(path)
    assert codes(report) == []
    assert list(report["fields"]) == ["x"]
    assert codes(report, "warnings") == ["unusable_array", "unusable_array"]


def _strings(path):
    write(path, x=np.array(["a", "bc"], dtype=object))


def _external_storage(path):
    with h5py.File(path, "w") as file:
        file["good"] = np.ones(4)
        file.create_dataset("x", (4,), "float32", external=[("/etc/hostname", 0, 16)])


def _virtual(path):
    layout = h5py.VirtualLayout((4,), "float64")
    layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)


def _huge_chunks(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (2**20, 2**12), "float64", chunks=(2**18, 2**12 // 4 - 1))


BAD_FILES = {
    "empty_file": lambda path: path.write_bytes(b""),
    "unreadable": lambda path: path.write_bytes(b"id,price\n1,2\n" * 100),
    "unreadable truncated": lambda path: os.truncate(write_arrays(path), 2_000),
    "no_arrays": lambda path: write(path),
    "no_arrays strings": _strings,
    "no_arrays complex": lambda path: write(path, x=np.ones(3, complex)),
    "no_arrays empty samples": lambda path: write(path, x=np.ones((5, 0))),
    "external_link": lambda path: write(path, y=np.ones(3), x=h5py.ExternalLink("b.h5", "x")),
    "external_storage": _external_storage,
    "external_storage virtual": _virtual,
    "length_mismatch": lambda path: write(path, x=np.ones((5, 2)), y=np.ones(4)),
    "no_samples": lambda path: write(path, x=np.ones((0, 3))),
    "huge_chunks": _huge_chunks,
    "not_a_file": lambda path: path.mkdir(),
    "not_a_file missing": lambda path: None,
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_told_what_is_wrong(tmp_path, kind):
    path = tmp_path / "bad.h5"
    BAD_FILES[kind](path)
    report = inspect(path)
    assert kind.split()[0] in codes(report)
    assert report["fingerprint"] is None
    assert all(problem["message"].endswith(".") for problem in report["problems"])
    json.dumps(report, allow_nan=False)


def test_groups_that_contain_one_another_end(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["group/x"] = np.ones((4, 2))
        file["group/again"] = file["group"]
        file["group/top"] = file["/"]
    assert list(inspect(path)["fields"]) == ["group/x"]


def test_large_samples_are_not_read_as_a_whole(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:  # 2 TiB that take no room: chunks that were never written
        file.create_dataset("x", (4, 2**27, 1024), "float32", chunks=(1, 1024, 64))
    report = inspect(path)
    assert codes(report) == []
    assert report["read_probe"] is None
    assert report["fields"]["x"]["shape"] == [2**27, 1024]


@pytest.mark.parametrize("good", [True, False])
def test_the_command_prints_one_document_and_exits_0(tmp_path, good):
    path = tmp_path / "a.h5"
    if good:
        write_arrays(path)
    else:
        path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 9)
    command = [sys.executable, "-m", "worker.trainer.tools.inspect", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (codes(json.loads(done.stdout)) == []) is good
    assert done.stdout.count("\n") == 1


def test_inspection_does_not_load_torch():
    """A child is started for each inspection; loading torch would take it seconds."""
    tools = "worker.trainer.tools"
    code = f"import sys, {tools}.inspect, {tools}.sample_weather; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "pandas", "pvlib"} & set(done.stdout.split())


def test_scale_is_told_of_the_finite_values(tmp_path):
    x = np.random.default_rng(1).normal(250.0, 40.0, (3000, 7)).astype(np.float32)
    expected = x.astype(np.float64)
    x[5, 1], x[6, 2] = np.nan, -np.inf
    good = np.isfinite(x)
    path = write(tmp_path / "a.h5", x=x,
                 count=(np.arange(3000) % 5).astype(np.int8))  # fmt: skip
    fields = inspect(path)["fields"]
    assert fields["x"]["mean"] == pytest.approx(expected[good].mean(), rel=1e-12)
    assert fields["x"]["std"] == pytest.approx(expected[good].std(), rel=1e-9)
    assert (fields["count"]["mean"], fields["count"]["std"]) == (2.0, pytest.approx(2**0.5))


@pytest.mark.parametrize("value", [np.nan, 1e300])
def test_a_scale_that_cannot_be_computed_is_not_known(tmp_path, value):
    report = inspect(write(tmp_path / "a.h5", x=np.array([value, -value])))
    assert (report["fields"]["x"]["mean"], report["fields"]["x"]["std"]) == (None, None)
    json.dumps(report, allow_nan=False)


def test_no_value_is_counted_twice(tmp_path):
    """Somewhat more rows than two of the four ranges hold."""
    x = np.zeros((2_500_000, 1), np.float32)
    x[1_000_000:1_000_100] = np.nan
    field = inspect(write(tmp_path / "a.h5", x=x))["fields"]["x"]
    assert (field["sampled_rows"], field["nonfinite_count"]) == (2_500_000, 100)


RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 10, 5000)
ORDERS = {
    "labels": (np.sort(LABELS), True),
    "labels falling": (np.sort(LABELS)[::-1], True),
    "labels in a column": (np.sort(LABELS)[:, None].astype(np.float32), True),
    "two labels": (np.sort(LABELS > 4), True),
    "rare label last": (np.arange(5000) > 4990, True),
    "numbers": (np.sort(RNG.normal(size=5000)), True),
    "rows of numbers": (np.sort(RNG.normal(size=5000))[:, None] + np.arange(4.0), True),
    "more than is sampled": (np.repeat(np.arange(10, dtype=np.int64), 600_000), True),
    "shuffled labels": (LABELS, False),
    "shuffled more than is sampled": (RNG.integers(0, 2, 6_000_000), False),
    "one fall": (np.array([0, 0, 1, 1, 2, 1, 2, 2]), False),
    "constant": (np.ones(5000), False),
    "up and down": (np.abs(np.arange(-2500, 2500)), False),
    "one row": (np.array([3.0]), False),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_the_order_of_the_file_is_told(tmp_path, kind):
    values, expected = ORDERS[kind]
    field = inspect(write(tmp_path / "a.h5", y=values))["fields"]["y"]
    assert field["sorted"] is expected


GAMES = np.repeat(RNG.choice([-1.0, 1.0], 1_000), 16)
FILES = np.repeat(RNG.normal(size=4), 4_096) + RNG.normal(size=16_384)


@pytest.mark.parametrize(
    ("values", "correlations", "shares"),
    [
        (GAMES, {1: 15 / 16, 4: 12 / 16, 16: 0.0}, {1: 1.0, 16: 1.0, 64: 0.25}),
        # Values beside each other count alike, whatever their units; a constant one not at all.
        (
            np.stack([GAMES, 1e6 + 100 * RNG.normal(size=16_000), np.ones(16_000)], axis=1),
            {1: 15 / 32, 16: 0.0},
            {1: 1.0, 16: (1 + 1 / 16) / 2},
        ),
        (RNG.normal(size=(20_000, 3, 8)), {1: 0.0, 64: 0.0}, {1: 1.0, 2: 0.5, 256: 1 / 256}),
        (np.where(RNG.random(16_000) < 0.01, np.nan, GAMES), {1: 15 / 16}, {16: 1.0}),
        # Files that differ show in long blocks.
        (FILES, {1: FILES.var() - 1, 64: FILES.var() - 1}, {512: FILES.var() - 1}),
    ],
    ids=["games", "units", "independent", "NaN", "files"],
)
def test_how_alike_neighbours_are_is_told(tmp_path, values, correlations, shares):
    told = inspect(write(tmp_path / "a.h5", y=values))["fields"]["y"]["neighbours"]
    assert told["distances"] == [2**power for power in range(len(told["distances"]))]
    for name, expected in (("correlations", correlations), ("shares", shares)):
        found = dict(zip(told["distances"], told[name], strict=True))
        scale = FILES.var() if values is FILES else 1.0
        assert {n: found[n] for n in expected} == pytest.approx(
            {n: value / scale for n, value in expected.items()}, abs=0.04
        )


@pytest.mark.parametrize("values", [np.ones(5_000), np.arange(31.0), np.full(5_000, np.nan)])
def test_nothing_is_told_of_neighbours_that_do_not_differ_or_are_few(tmp_path, values):
    assert inspect(write(tmp_path / "a.h5", y=values))["fields"]["y"]["neighbours"] is None


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32"])
@pytest.mark.parametrize("piece", [1_000, 2**24], ids=["pieces", "whole"])
def test_stretches_of_the_file_without_a_class_are_listed(tmp_path, monkeypatch, dtype, piece):
    monkeypatch.setattr("worker.trainer.tools.content.SAMPLE_BYTES", piece)
    labels = np.zeros(6_000, dtype)
    labels[3_000:3_020] = labels[5_000:5_001] = 1
    told = inspect(write(tmp_path / "a.h5", kind=labels))["fields"]["kind"]["classes"]
    assert [(one["label"], one["samples"]) for one in told] == [(0, 5_979), (1, 21)]
    assert [one["absent"] for one in told] == [[], [(0, 3_000), (3_020, 5_000), (5_001, 6_000)]]


@pytest.mark.parametrize("name", ["targets", "y"])
def test_a_constant_array_of_one_number_a_sample_is_warned_of(tmp_path, name):
    warnings = inspect(write(tmp_path / "a.h5", **{name: np.full(300, 0.1)}))["warnings"]
    (told,) = [one["message"] for one in warnings if one["code"] == "constant_target"]
    assert told.startswith(f"{name!r} is 0.1 in all 300 rows")


def test_a_class_that_the_usual_validation_part_lacks_is_warned_of(tmp_path):
    """The last fifth, of which a class may be absent from a part alone."""
    labels = np.tile(np.arange(4), 250)
    labels[700:] = np.where(labels[700:] == 3, 0, labels[700:])
    labels[850:] = np.where(labels[850:] == 2, 0, labels[850:])
    warnings = inspect(write(tmp_path / "a.h5", targets=labels))["warnings"]
    (told,) = [one["message"] for one in warnings if one["code"] == "class_lacking"]
    assert told.startswith("No sample of the validation part has class 3 of 'targets'. These are")
    assert "the last 200 samples" in told
    labels_as_floats = inspect(write(tmp_path / "a.h5", label=labels.astype(np.float32)))
    (told,) = [one["message"] for one in labels_as_floats["warnings"]]
    assert told.startswith("No sample of the validation part has class 3 of 'label'.")
    for other in (labels[:700], labels[:, None].repeat(2, 1), labels + 0.5):
        warnings = inspect(write(tmp_path / "a.h5", targets=other))["warnings"]
        assert "class_lacking" not in [one["code"] for one in warnings]


def test_a_missing_label_is_no_class(tmp_path):
    labels = np.repeat([1.0, np.nan], 50)
    (told,) = inspect(write(tmp_path / "a.h5", kind=labels))["fields"]["kind"]["classes"]
    assert told == {"label": 1, "samples": 50, "absent": [(50, 100)]}


@pytest.mark.parametrize(
    "values",
    [np.arange(65), np.array([0.0, 0.5] * 40), np.array([-1, 1] * 40), np.zeros((80, 3))],
    ids=["many", "fractions", "negative", "rows"],
)
def test_numbers_that_are_no_few_whole_ones_are_no_classes(tmp_path, values):
    assert inspect(write(tmp_path / "a.h5", y=values))["fields"]["y"]["classes"] is None


def test_rows_that_are_no_numbers_do_not_hide_the_order(tmp_path):
    y = np.repeat([0.0, 1.0, 2.0], 100)
    y[150] = np.nan
    assert inspect(write(tmp_path / "a.h5", y=y))["fields"]["y"]["sorted"] is True


def test_rows_too_large_to_look_at_have_no_scale_and_no_order(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:  # chunks that were never written take no room
        file.create_dataset("x", (4, 2**12, 2**11), "float32", chunks=(1, 1024, 64))
    assert inspect(path)["fields"]["x"].keys().isdisjoint({"mean", "std", "sorted"})


def test_where_the_file_lies_is_told(tmp_path):
    assert inspect(write_arrays(tmp_path / "a.h5"))["layout"]["network"] == on_network(tmp_path)


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_what_a_field_says_of_parts_is_counted_in_all_samples(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr("worker.trainer.tools.content.SAMPLE_BYTES", 1000)
    part = np.repeat([0, 1, 0, 2], [4000, 1000, 500, 500]).astype(dtype)
    path = write(tmp_path / "a.h5", part=part, x=np.random.rand(6000, 3))
    fields = inspect(path)["fields"]
    assert fields["part"]["parts"] == {
        "training": 4500, "validation": 1000, "test": 500, "changes": [4000, 5000, 5500],
    }  # fmt: skip
    assert "parts" not in fields["x"]


def test_so_many_changes_of_part_are_not_listed(tmp_path):
    part = np.arange(5000) % 2 == 1
    (field,) = inspect(write(tmp_path / "a.h5", held_out=part))["fields"].values()
    assert field["parts"] == {
        "training": 2500, "validation": 2500, "test": 0, "changes": None,
    }  # fmt: skip


@pytest.mark.parametrize("stray", [3, -1, 2**40])
def test_the_first_sample_in_no_part_is_told(tmp_path, stray):
    part = np.zeros(5000, np.int64)
    part[[3210, 4000]] = stray
    (field,) = inspect(write(tmp_path / "a.h5", part=part))["fields"].values()
    assert field["not_a_part"] == {"sample": 3210, "value": stray}
    assert "parts" not in field


@pytest.mark.parametrize(
    ("inputs", "targets", "is_word"),
    [
        (["features"], ["targets"], True),
        (["features", "gone"], ["targets"], False),
        ([], ["targets"], False),
        ("features", "targets", True),
        (np.array([b"features"]), ["targets"], True),
        (["features"], ["target"], False),
        ([1, 2], ["targets"], False),
        (h5py.Empty("f4"), ["targets"], False),
    ],
)
def test_a_file_may_say_which_arrays_are_inputs_and_targets(tmp_path, inputs, targets, is_word):
    path = write_arrays(tmp_path / "a.h5")
    assert inspect(path)["layout"]["roles"] is None
    with h5py.File(path, "a") as file:
        file.attrs["inputs"], file.attrs["targets"] = inputs, targets
    report = inspect(path)
    assert report["problems"] == []
    roles = {"inputs": ["features"], "targets": ["targets"]} if is_word else None
    assert report["layout"]["roles"] == roles
    warned = "attributes inputs and targets" in str(report["warnings"])
    assert warned == (not is_word)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.0])
def test_a_target_that_never_changes_is_warned_of(tmp_path, value):
    path = write_arrays(tmp_path / "a.h5")
    assert "nothing to learn" not in str(inspect(path)["warnings"])
    with h5py.File(path, "a") as file:
        file["targets"][...] = value
    report = inspect(path)
    assert report["problems"] == []
    assert "nothing to learn" in str(report["warnings"])
    with h5py.File(path, "a") as file:  # it names another array
        file.attrs["inputs"], file.attrs["targets"] = ["targets"], ["features"]
    assert "nothing to learn" not in str(inspect(path)["warnings"])
