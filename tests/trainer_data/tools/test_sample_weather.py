"""The weather sample: real measurements in the reference layout."""

import csv
import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from worker.trainer.tools import sample_weather, samples
from worker.trainer.tools.inspect import inspect
from worker.trainer.tools.sample_weather import (
    FEATURES,
    find_station_file,
)

TEMPERATURE = FEATURES.index("dry_bulb")


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "data" / "weather.h5"
    command = [sys.executable, "-m", "worker.trainer.tools.sample_weather", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["samples"] == 4020
    return path


def test_it_has_the_reference_layout(sample):
    report = inspect(sample)
    assert report["problems"] == report["warnings"] == []
    assert report["samples"] == 4020
    assert report["fields"]["features"]["shape"] == [360, 16]
    assert report["fields"]["targets"]["shape"] == [36]
    assert {field["storage"] for field in report["fields"].values()} == {"contiguous"}
    assert {field["dtype"] for field in report["fields"].values()} == {"float32"}


def test_it_says_what_it_is(sample):
    with h5py.File(sample) as file:
        assert file.attrs["feature_names"].tolist() == list(FEATURES)
        assert len(file.attrs["feature_units"]) == 16
        assert file.attrs["target_unit"] == "degC"
        assert "723170" in file.attrs["station"]
        assert file.attrs["source"]
        assert file.attrs["licence"]


def test_windows_are_measured_hours_of_one_month(sample):
    """Compared with the station's file, read in another way."""
    with find_station_file().open() as file:
        rows = list(csv.reader(file))[2:]
    measured = np.array([float(row[31]) for row in rows], dtype=np.float32)  # Dry-bulb (C)
    months = np.array([int(row[0][:2]) for row in rows])
    hours = np.concatenate(
        [np.flatnonzero(months == month)[: -(360 + 36 - 1)] for month in range(1, 13)]
    )
    with h5py.File(sample) as file:
        features, targets = file["features"], file["targets"]
        assert len(hours) == len(features)
        for row in (0, 348, 349, 1500, 2996, 2997, 4019):
            hour = hours[row]
            np.testing.assert_array_equal(
                features[row, :, TEMPERATURE], measured[hour : hour + 360]
            )
            np.testing.assert_array_equal(targets[row], measured[hour + 360 : hour + 396])
            assert len(set(months[hour : hour + 396])) == 1
        # Where the examples cut it: by months, so that no hour is in two parts.
        assert [months[hours[row]] for row in (2671, 2672, 3345, 3346)] == [8, 9, 10, 11]


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    out = tmp_path / "weather.h5"
    assert sample_weather.main([str(out)]) == 1
    assert "disk full" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_month_of_the_measured_file_is_converted_without_a_gap(tmp_path, capsys):
    """TMY3 names each hour by its end, so a day ends at 24:00."""
    rows = find_station_file().read_text().splitlines(keepends=True)[1 : 2 + 31 * 24]
    path, out = tmp_path / "january.csv", tmp_path / "january.h5"
    path.write_text("".join(rows))
    given = ["--window=48", "--horizon=12", "--target=Dry-bulb (C)"]
    given += ["--time=Date (MM/DD/YYYY)", "--time=Time (HH:MM)", "--time-format=%m/%d/%Y %H:%M"]
    assert samples.main([str(path), str(out), *given]) == 0, capsys.readouterr().err
    made = json.loads(capsys.readouterr().out)
    assert (made["steps"], made["stretches"], made["bad"]) == (31 * 24, 1, {})
