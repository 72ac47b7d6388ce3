"""Opening a run's data from its spec: parts, residency, shuffle, checks, description."""

import json
import os
import re
import threading

import h5py
import numpy as np
import pytest
import torch

from app.planning import shuffle as shuffling
from app.planning.ladder import NO_RUNG, Rung
from tests.trainer_data.factories import entry, make_spec, rows_of, write_arrays
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed.read_threads import READ_THREADS
from worker.trainer.data.feed.resident import Resident
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.errors import DataError, DatasetChanged, SpecMismatch, TrainerError

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def open_numbers(numbers, unstopped):
    """Opens the file `numbers` for a spec made of these parts."""
    opened = []

    def open_one(data=None, budget=GIB, datasets=None, rung=NO_RUNG, **parts):
        spec = make_spec(data, **parts)
        datasets = datasets or {"numbers": entry(numbers)}
        opened.append(open_data(spec, datasets, CPU, unstopped, budget, rung))
        return opened[-1]

    yield open_one
    for data in opened:
        data.close()


def test_parts_come_as_the_spec_says(open_numbers):
    data = open_numbers(
        {"split": {"method": "chronological", "validation_fraction": 0.2, "test_fraction": 0.1}},
        training={"batch_size": 32, "seed": 4},
        evaluation={"batch_size": 16},
    )
    train = rows_of(data.train.iterate(0))
    assert sorted(train) == list(range(70)) != train
    assert rows_of(data.validation.iterate(0)) == list(range(70, 90))
    assert rows_of(data.test.iterate(0)) == list(range(90, 100))
    assert [batch.size for batch in data.train.iterate(1)] == [32, 32, 6]
    assert [batch.size for batch in data.validation.iterate(0)] == [16, 4]
    assert data.fields["features"].shape == (6, 3)


def test_parts_that_were_not_asked_for_are_none(open_numbers):
    data = open_numbers({"split": {"method": "chronological", "validation_fraction": 0.0}})
    assert data.validation is None
    assert data.test is None


def test_the_tail_is_left_out_only_when_asked(open_numbers):
    parts = {"split": {"method": "chronological", "validation_fraction": 0.0}}
    data = open_numbers(parts, training={"batch_size": 30, "drop_last": True})
    assert [batch.size for batch in data.train.iterate(0)] == [30, 30, 30]
    with pytest.raises(SpecMismatch, match="fewer than one batch"):
        open_numbers(parts, training={"batch_size": 101, "drop_last": True})


@pytest.mark.parametrize("shuffle", ["full", "block", "none"])
def test_residency_chunks_and_loader_do_not_change_what_is_trained_on(open_numbers, shuffle):
    loaders: list[dict[str, object]] = [
        {"residency": "resident"},
        {"residency": "stream"},
        {"residency": "stream", "chunk_size": "1KiB"},
        {"residency": "stream", "chunk_size": "3%"},
    ]
    seen = []
    if shuffle != "block":
        loaders.append({"kind": "dataloader"})
    for loader in loaders:
        loader |= {"kind": "chunked", "shuffle": shuffle} | loader
        if shuffle == "block":
            loader["shuffle_group"] = 32
        data = open_numbers({"loader": loader, "split": {"method": "random"}}, budget=10**6)
        seen.append([rows_of([batch]) for epoch in range(2) for batch in data.train.iterate(epoch)])
    assert all(rows == seen[0] for rows in seen)


def test_auto_is_resident_when_it_fits_and_streams_otherwise(open_numbers):
    resident, streamed = open_numbers(), open_numbers(budget=5_000)
    assert isinstance(resident.train, Resident)
    assert isinstance(resident.validation, Resident)
    assert isinstance(streamed.train, Streamed)
    assert isinstance(streamed.validation, Streamed)
    assert streamed.describe()["chunk_samples"] == 5_000 // 4 // 96  # and as much to validate
    assert rows_of(streamed.train.iterate(3)) == rows_of(resident.train.iterate(3))


@pytest.mark.parametrize(
    ("loader", "sentence"),
    [
        ({"residency": "resident"}, "the data takes .* MiB .* set it to auto or stream"),
        ({"residency": "stream", "chunk_size": "1GiB"}, "lower data.loader.chunk_size"),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(open_numbers, loader, sentence):
    with pytest.raises(SpecMismatch, match=sentence):
        open_numbers({"loader": {"kind": "chunked", **loader}}, budget=5_000)


def test_a_dataset_of_its_own_can_validate(open_numbers, numbers, tmp_path):
    later = write_arrays(tmp_path / "later.h5", samples=12)
    datasets = {"numbers": entry(numbers), "later": entry(later)}
    split = {"method": "datasets", "validation": "later"}
    data = open_numbers({"split": split}, datasets=datasets)
    assert sorted(rows_of(data.train.iterate(0))) == list(range(100))
    assert rows_of(data.validation.iterate(0)) == list(range(12))


LOADED: dict[str, object] = {"kind": "dataloader", "multiprocessing_context": "forkserver"}


def test_parts_read_by_processes_come_as_the_spec_says(open_numbers, numbers, tmp_path):
    """Also datasets of their own, of which each is read by processes of its own."""
    later, last = (write_arrays(tmp_path / f"{n}.h5", samples=12) for n in ("later", "last"))
    datasets = {"numbers": entry(numbers), "later": entry(later), "last": entry(last)}
    data = open_numbers(
        {
            "split": {"method": "datasets", "validation": "later", "test": "last"},
            "loader": {**LOADED, "num_workers": 1},
        },
        datasets=datasets,
        training={"batch_size": 32, "drop_last": True},
        evaluation={"batch_size": 5},
    )
    train = data.train.iterate(0)
    first = next(train)
    assert first.size == 32
    assert rows_of(data.validation.iterate(0)) == rows_of(data.test.iterate(0)) == list(range(12))
    assert len(data.pids) == 1, "those of the training, which is not over"
    assert [batch.size for batch in train] == [32, 32]
    sizes = [batch.size for batch in data.validation.iterate(0)]
    assert sizes == [5, 5, 2]
    assert data.counters.bytes_read == (96 + 12 + 12 + 12) * 88
    assert data.pids == []


def test_what_the_pytorch_loader_really_uses_is_said(open_numbers, monkeypatch):
    """Fewer processes than are asked for, where there are fewer cores or batches: with a reason."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    loader = {**LOADED, "num_workers": 8, "prefetch_factor": 5, "persistent_workers": True}
    split = {"method": "chronological", "validation_fraction": 0.2, "test_fraction": 0.1}
    data = open_numbers({"loader": loader, "split": split}, training={"batch_size": 10})
    described = json.loads(json.dumps(data.describe()))
    assert {name: described[name] for name in list(described)[:7]} == {
        "loader": "dataloader",
        "num_workers": {"train": 3, "validation": 2, "test": 1},
        "num_workers_asked": 8,
        "prefetch_factor": 5,
        "persistent_workers": True,
        "multiprocessing_context": "forkserver",
        "pin_memory": False,
    }
    assert described["shuffle"] == "full"
    assert data.warnings == [
        (
            "fewer_loader_processes",
            "data.loader.num_workers is 8, and fewer are started: 3 for the training part (cores "
            "that may be used: 3), 2 for the validation part (batches: 2), 1 for the test part "
            "(batches: 1).",
        )
    ]


@pytest.mark.parametrize(("workers", "threads"), [(0, READ_THREADS), (1, 1)])
def test_a_process_reads_with_one_thread_and_the_trainer_with_several(
    open_numbers, workers, threads
):
    data = open_numbers({"loader": {**LOADED, "num_workers": workers}})
    source = data.train._dataset._samples._open_source()
    assert source._rows._threads.count == threads
    source.close()


def test_a_rung_of_the_memory_ladder_is_a_reason_for_fewer_too(open_numbers):
    loader = {**LOADED, "num_workers": 1, "prefetch_factor": 5}
    data = open_numbers({"loader": loader}, rung=Rung(2, workers=0, prefetch_factor=1))
    assert data.describe()["num_workers"] == {"train": 0, "validation": 0}
    [(_, told)] = data.warnings
    assert told.count("(the memory ladder)") == 2
    ahead = open_numbers({"loader": loader}, rung=Rung(1, prefetch_factor=1))
    assert ahead.describe()["prefetch_factor"] == 1
    assert ahead.warnings == []


def test_what_is_done_as_asked_is_no_warning(open_numbers):
    for loader in ({"kind": "chunked"}, {"kind": "dataloader"}, {**LOADED, "num_workers": 1}):
        data = open_numbers({"loader": loader})
        assert data.warnings == []
    described = open_numbers({"loader": {"kind": "dataloader"}}).describe()
    assert (described["prefetch_factor"], described["multiprocessing_context"]) == (None, None)


def test_page_locked_batches_are_refused_where_nothing_is_copied(open_numbers):
    with pytest.raises(SpecMismatch, match=r"pin_memory is for copies to a GPU.* set it to false"):
        open_numbers({"loader": {"kind": "dataloader", "pin_memory": True}})


def test_a_validation_dataset_of_another_shape_is_refused(open_numbers, numbers, tmp_path):
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["features"] = np.ones((5, 6, 4), np.float32)
        file["targets"] = np.ones((5, 4), np.float32)
    datasets = {"numbers": entry(numbers), "other": entry(other)}
    with pytest.raises(SpecMismatch, match=r"features float32\(6, 4\).*the same arrays"):
        open_numbers({"split": {"method": "datasets", "validation": "other"}}, datasets=datasets)


def test_a_file_that_is_not_the_registered_one_is_refused(open_numbers, numbers):
    registered = {"numbers": entry(numbers)}
    write_arrays(numbers, samples=101)
    with pytest.raises(DatasetChanged, match=r"'numbers'.*its size, modification time changed"):
        open_numbers(datasets=registered)


def test_a_changed_row_is_noticed_even_if_the_times_are_put_back(open_numbers, numbers):
    registered = {"numbers": entry(numbers)}
    with h5py.File(numbers, "r+") as file:
        file["targets"][0] = 5
    registered["numbers"]["fingerprint"]["mtime_ns"] = numbers.stat().st_mtime_ns
    with pytest.raises(DatasetChanged, match="its content changed"):
        open_numbers(datasets=registered)


def test_the_training_part_is_read_ahead_up_to_the_last_epoch_and_no_other_is(open_numbers):
    data = open_numbers(
        {"loader": {"kind": "chunked", "residency": "stream", "chunk_size": "1KiB"}},
        training={"epochs": 2, "batch_size": 8},
    )

    def readers():
        return [one.name for one in threading.enumerate() if one.name == "chunk-reader"]

    rows_of(data.validation.iterate(0))
    assert not readers()
    rows_of(data.train.iterate(0))
    assert readers()
    rows_of(data.train.iterate(1))
    assert not readers()


def test_an_empty_dataset_is_refused(open_numbers, tmp_path):
    empty = write_arrays(tmp_path / "empty.h5", samples=0)
    with pytest.raises(DataError, match="holds no samples"):
        open_numbers(datasets={"numbers": entry(empty)})


BY_PART = {"split": {"method": "field", "field": "part"}}


@pytest.mark.parametrize(
    "loader",
    [
        {"kind": "chunked", "residency": "resident", "shuffle": "none"},
        {"kind": "chunked", "residency": "stream", "shuffle": "none"},
        {"kind": "dataloader", "shuffle": "none"},
    ],
    ids=["resident", "stream", "dataloader"],
)
def test_a_field_of_the_file_splits_it(open_numbers, numbers, loader):
    part = np.random.default_rng(3).choice(3, 100).astype(np.uint8)
    with h5py.File(numbers, "a") as file:
        file.create_dataset("part", data=part, chunks=(7,), compression="gzip")
    data = open_numbers(BY_PART | {"loader": loader})
    for number, stream in enumerate((data.train, data.validation, data.test)):
        assert rows_of(stream.iterate(0)) == np.flatnonzero(part == number).tolist()
    assert data.describe()["validation_samples"] == (part == 1).sum()


@pytest.mark.parametrize("rung", [NO_RUNG, Rung(1, evaluation_batch=2)])
@pytest.mark.parametrize(
    "loader",
    [
        {"kind": "chunked", "residency": "resident"},
        {"kind": "chunked", "residency": "stream", "chunk_size": "1KiB"},
        {"kind": "dataloader"},
    ],
    ids=["resident", "stream", "dataloader"],
)
def test_a_limited_evaluation_has_the_same_spaced_batches_each_time(open_numbers, loader, rung):
    split = {"method": "chronological", "validation_fraction": 0.3, "test_fraction": 0.2}
    evaluation = {"batch_size": 5, "max_batches": 2}
    data = open_numbers({"loader": loader, "split": split}, rung=rung, evaluation=evaluation)
    expected = [*range(55, 60), *range(70, 75)]  # of 50 to 79
    for epoch in (0, 0, 3):
        assert rows_of(data.validation.iterate(epoch)) == expected
    assert rows_of(data.test.iterate(0)) == list(range(80, 100))
    assert data.describe()["validation_samples"] == 30


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (np.r_[np.zeros(60), 3, np.ones(39)].astype(np.int32), "Sample 60 has 3 in 'part'"),
        (np.zeros(100, np.float32), "'part' has samples of float32"),
        (np.zeros((100, 2), np.int8), "one whole number for each"),
    ],
)
def test_a_field_that_cannot_split_ends_the_run_with_a_sentence(open_numbers, numbers, part, told):
    with h5py.File(numbers, "a") as file:
        file["part"] = part
    with pytest.raises(TrainerError, match=re.escape(told)):
        open_numbers(BY_PART)


def test_a_field_that_is_not_there_ends_the_run_with_a_sentence(open_numbers):
    with pytest.raises(SpecMismatch, match="has no array 'part'"):
        open_numbers(BY_PART)


@pytest.mark.parametrize(
    "loader",
    [
        {"kind": "chunked", "residency": "resident"},
        {"kind": "chunked", "residency": "stream"},
        {"kind": "dataloader"},
    ],
    ids=["resident", "stream", "dataloader"],
)
def test_statistics_are_those_of_the_training_part(open_numbers, numbers, unstopped, loader):
    data = open_numbers({"loader": loader})
    found = data.statistics(("features", "targets"), unstopped)
    with h5py.File(numbers) as file:
        features = file["features"][:80].astype(np.float64)
        targets = file["targets"][:80].astype(np.float64)
    np.testing.assert_allclose(found["features"][0], features.mean((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(found["features"][1], features.std((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(found["targets"][1], targets.std(), rtol=1e-12)


@pytest.mark.parametrize(("most", "shuffle"), [(8_800, "full"), (8_799, "block")])
def test_the_whole_dataset_decides_about_blocks_that_an_earlier_version_left_open(
    open_numbers, monkeypatch, most, shuffle
):
    """100 samples of 88 bytes, of which 80 train."""
    monkeypatch.setattr(shuffling, "EARLIER_FULL_BYTES", most)
    assert open_numbers().describe()["shuffle"] == shuffle


def test_the_first_samples_are_those_of_the_training_part(open_numbers):
    data = open_numbers({"split": {"method": "random", "validation_fraction": 0.5}})
    features = data.first_samples(7)["features"]
    assert features[:, 0, 0].tolist() == sorted(rows_of(data.train.iterate(0)))[:7]
    assert {name: len(array) for name, array in data.first_samples(900).items()} == {
        "features": 50, "targets": 50,
    }  # fmt: skip


def test_the_description_can_be_stored(open_numbers):
    loader = {"kind": "chunked", "residency": "stream", "shuffle": "block", "shuffle_group": 32}
    described = json.loads(json.dumps(open_numbers({"loader": loader}).describe()))
    assert described["residency"] == "stream"
    assert (described["shuffle"], described["shuffle_group"], described["shuffle_block"]) == (
        "block", 32, 2,
    )  # fmt: skip
    assert described["train_samples"] + described["validation_samples"] == 100
    assert described["data_bytes"] == 100 * described["sample_bytes"] == 8_800


@pytest.mark.parametrize(
    ("storage", "shuffle", "first_bytes", "is_small"),
    [
        ({}, "full", 100, True),
        ({}, "full", 200, False),
        ({}, "block", 100, True),
        ({}, "none", 200, True),
        ({"chunks": True, "compression": "gzip"}, "none", 100, True),
        ({"chunks": True, "compression": "gzip"}, "full", 100, False),
    ],
)
def test_a_first_chunk_is_small_where_that_costs_nothing(
    tmp_path, unstopped, monkeypatch, storage, shuffle, first_bytes, is_small
):
    """Of packed rows that lie scattered, all would be unpacked for a few; and few are read soon."""
    monkeypatch.setattr("worker.trainer.data.feed.opening.FIRST_CHUNK_BYTES", first_bytes)
    path = write_arrays(tmp_path / "a.h5", **storage)
    loader = {"kind": "chunked", "residency": "stream", "shuffle": shuffle, "chunk_size": "4KiB"}
    spec = make_spec({"loader": loader}, training={"batch_size": 5})
    data = open_data(spec, {"numbers": entry(path)}, CPU, unstopped, GIB)
    assert isinstance(data.train, Streamed)
    assert (data.train._chunks.first_samples < data.train._chunks.chunk_samples) == is_small
    assert sorted(rows_of(data.train.iterate(0))) == list(range(80))
    data.close()
