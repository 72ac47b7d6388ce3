"""Splits by groups that a text or a number names: the same parts by every kind of file."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather

from app.planning.arithmetic import GROUP_BUCKETS, group_sizes
from app.spec.data import GroupSplit
from tests.trainer_data.factories import entry, make_spec, write_arrays
from worker.trainer.data.dataset import open_data
from worker.trainer.data.groups import bucket_of, group_buckets
from worker.trainer.errors import DataError, SpecMismatch
from worker.trainer.tools.inspect import inspect

NAMES = [f"Spiel {number // 3} \u2654" for number in range(100)]
SPLIT = {"method": "groups", "field": "game", "validation_fraction": 0.3, "test_fraction": 0.2}
CPU = torch.device("cpu")


def hdf5(folder: Path, game: Any, **more: Any) -> Path:
    path = write_arrays(folder / "numbers.h5")
    with h5py.File(path, "r+") as file:
        file.create_dataset("game", data=game, **more)
    return path


def arrow(folder: Path, *games: Any) -> Path:
    path = folder / "numbers"
    path.mkdir()
    for number, game in enumerate(games):
        rows = np.arange(len(game), dtype=np.float32)
        features = pa.FixedSizeListArray.from_arrays(np.repeat(rows, 4), 4)
        table = pa.table({"features": features, "targets": rows, "game": game})
        feather.write_feather(table, path / f"{number}.feather", chunksize=7)
    return path


TEXTS = {
    "hdf5 text": lambda folder: hdf5(folder, NAMES, dtype=h5py.string_dtype()),
    "hdf5 bytes": lambda folder: hdf5(folder, np.array([one.encode() for one in NAMES])),
    "arrow": lambda folder: arrow(folder, pa.array(NAMES[:40]), pa.array(NAMES[40:])),
    "arrow, large": lambda folder: arrow(folder, pa.array(NAMES, pa.large_string())),
    "arrow dictionary": lambda folder: arrow(folder, pa.array(NAMES).dictionary_encode()),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_is_in_one_bucket_whatever_file_it_comes_by(tmp_path, kind):
    path = TEXTS[kind](tmp_path)
    expected = [bucket_of(name) for name in NAMES]
    assert np.concatenate(list(group_buckets(path, "game"))).tolist() == expected
    report = inspect(path)
    counts = np.bincount(expected, minlength=GROUP_BUCKETS).tolist()
    assert report["layout"]["groups"] == {"game": counts}
    begins = [(at, one) for at, one in enumerate(expected) if at == 0 or one != expected[at - 1]]
    assert report["layout"]["group_changes"] == {"game": begins}
    assert "game" not in report["fields"]


def test_buckets_are_those_of_every_version():
    """A resume of another version would train on what was held out otherwise."""
    assert [bucket_of(name) for name in ("", "a", "e4 e5", "CCO", 17)] == [52, 50, 67, 60, 51]
    assert bucket_of(b"CCO") == bucket_of("CCO")


@pytest.mark.parametrize("dtype", ["int64", "uint16", "bool"])
def test_whole_numbers_are_names_too(tmp_path, dtype):
    numbers = (np.arange(100) // 5).astype(dtype)
    found = np.concatenate(list(group_buckets(hdf5(tmp_path, numbers), "game")))
    assert found.tolist() == [bucket_of(one) for one in numbers.tolist()]


@pytest.mark.parametrize("kind", ["hdf5 text", "arrow"])
def test_no_group_is_in_two_parts_and_the_guard_knows_their_sizes(tmp_path, unstopped, kind):
    path = TEXTS[kind](tmp_path)
    spec = make_spec({"split": SPLIT})
    data = open_data(spec, {"numbers": entry(path)}, CPU, unstopped)
    rows = {}
    for name in ("train", "validation", "test"):
        stream = getattr(data, name)
        rows[name] = stream.plan.num_samples
    assert isinstance(spec.data.split, GroupSplit)
    sizes = group_sizes(spec.data.split, inspect(path)["layout"]["groups"]["game"])
    assert tuple(sizes) == tuple(rows.values())
    assert sum(sizes) == 100
    assert sizes.training > sizes.validation > 0 < sizes.test
    data.close()
    buckets = [bucket_of(name) for name in NAMES]
    assert sizes.validation == sum(bucket < 30 for bucket in buckets)
    assert sizes.test == sum(30 <= bucket < 50 for bucket in buckets)


@pytest.mark.parametrize(
    ("game", "told"),
    [
        (np.arange(100, dtype=np.float32), "needs a text or one whole number"),
        (np.zeros((100, 2), np.int32), "needs a text or one whole number"),
        (np.zeros(99, np.int32), "has 99 rows and the dataset 100 samples"),
    ],
)
def test_what_names_no_group_is_refused(tmp_path, unstopped, game, told):
    path = hdf5(tmp_path, game)
    with pytest.raises(DataError, match=told):
        open_data(make_spec({"split": SPLIT}), {"numbers": entry(path)}, CPU, unstopped)


def test_a_missing_name_is_refused_and_not_told_by_the_inspection(tmp_path):
    path = arrow(tmp_path, pa.array([None, *NAMES[1:]]))
    with pytest.raises(DataError, match="for every sample"):
        list(group_buckets(path, "game"))
    assert inspect(path)["layout"]["groups"] == {}
    assert inspect(path)["layout"]["group_changes"] == {}
    with pytest.raises(DataError, match="does not say"):
        list(group_buckets(path, "match"))


def test_a_part_that_no_group_falls_into_is_refused(tmp_path, unstopped):
    path = hdf5(tmp_path, ["CCO"] * 100)
    with pytest.raises(SpecMismatch, match="No group of 'game' falls into the validation part"):
        open_data(make_spec({"split": SPLIT}), {"numbers": entry(path)}, CPU, unstopped)


def test_groups_that_change_too_often_are_not_told_one_by_one(tmp_path):
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as file:
        file["features"], file["targets"] = np.zeros((2100, 4), "float32"), np.zeros(2100)
        file["game"] = np.arange(2100)
    assert inspect(path)["layout"]["group_changes"] == {"game": None}
