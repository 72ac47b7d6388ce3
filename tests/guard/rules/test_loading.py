"""Rules of loading: chunks that hold what is shuffled together, and what makes them do so."""

import json
from collections import OrderedDict
from dataclasses import replace
from itertools import chain

import pytest

from app.guard.case import Case
from app.guard.facts import DatasetFacts, FieldFacts
from app.guard.reads import Reading, read_amplification
from app.planning.residency import CHUNK_CACHE_BYTES, PIECE_BYTES
from app.planning.shuffle import Shuffle, stored_shuffle
from app.spec.data import ChunkedLoader
from app.spec.layers import overlay
from app.spec.run import RunSpec
from tests.guard.changes import CHUNKED, LARGE, Change, by_torch
from tests.guard.world import FIELDS, GIB, REQUEST, codes, plan_of, weather, with_field, world
from worker.trainer.data.feed.rows import extents, in_file_order
from worker.trainer.data.order import Order

CODE = "speed.random_reads_of_chunks"
SQUEEZED = weather(
    samples=LARGE.samples, size_bytes=LARGE.size_bytes, fields=CHUNKED.fields
)  # of 2,000,000 samples; 16,384 of them are shuffled together in blocks


def loader(**values: object) -> Change:
    return {"data": {"loader": {"residency": "stream", **values}}}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"shuffle": "full", "chunk_size": "1GiB"}, True),
        ({"shuffle_group": 16_384, "chunk_size": "16MiB"}, True),
        ({"shuffle_group": 16_384, "chunk_size": "1GiB"}, False),
        ({"shuffle": "block", "chunk_size": "16MiB"}, False),  # its group is what a chunk holds
        ({"shuffle": "none", "chunk_size": "16MiB"}, False),
    ],
)
def test_blocks_are_read_in_order_only_by_chunks_that_hold_a_whole_group(asked, found):
    assert (CODE in codes(plan_of(loader(**asked), world(SQUEEZED)))) == found


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        # All of a small file fits a chunk, and the order stays as it is.
        ({"shuffle": "full", "chunk_size": "4MiB"}, {"/data/loader/chunk_size"}),
        ({"shuffle_group": 1_024, "chunk_size": "4MiB"}, {"/data/loader/chunk_size"}),
    ],
)
def test_larger_chunks_mend_what_they_can(asked, changed):
    (issue,) = [i for i in plan_of(loader(**asked), world(CHUNKED)).issues if i.code == CODE]
    assert {op.path for op in issue.fix} == changed
    assert issue.loc == ["data", "loader", "chunk_size"]


def test_a_file_that_no_chunk_holds_is_shuffled_in_blocks():
    asked = loader(shuffle="full", chunk_size="1GiB")
    (issue,) = [i for i in plan_of(asked, world(SQUEEZED)).issues if i.code == CODE]
    assert {op.path: op.value for op in issue.fix}["/data/loader/shuffle"] == "block"
    assert issue.loc == ["data", "loader", "shuffle"]


def test_the_time_of_reading_is_told_where_the_inspection_measured_it():
    asked = loader(shuffle="full", chunk_size="1GiB")

    def why(rate: float | None) -> str:
        data = weather(**{**vars(SQUEEZED), "read_bytes_per_second": rate})
        return next(i.why for i in plan_of(asked, world(data)).issues if i.code == CODE)

    assert "At the 2.0 GiB a second that its inspection read" in why(2.0 * GIB)
    assert "its inspection read" not in why(None)


@pytest.mark.parametrize(("rate", "found"), [(2.0e6, True), (2.0e12, False), (None, True)])
def test_a_minute_in_the_whole_run_is_no_loss(rate, found):
    asked = loader(shuffle="full", chunk_size="1GiB")
    data = weather(**{**vars(SQUEEZED), "read_bytes_per_second": rate})
    assert (CODE in codes(plan_of(asked, world(data)))) == found


SAMPLES, GROUP = 100_000, 16_384


def rows_read(shuffle: Shuffle, chunk: int, sample_bytes: int, storage_rows: int) -> int:
    """Rows of the storage chunks that an epoch reads: the trainer's own order and its own reads,
    with HDF5's cache of chunks.
    """
    order = Order(SAMPLES, 1, shuffle.kind, shuffle.group, shuffle.block)
    piece = PIECE_BYTES // sample_bytes
    places = CHUNK_CACHE_BYTES // (storage_rows * sample_bytes)
    cached: OrderedDict[int, None] = OrderedDict()
    read = start = 0
    while start < SAMPLES:
        stop = order.chunk_stop(0, start, chunk)
        ascending, _ = in_file_order(order.rows(0, start, stop))
        for begin in range(0, len(ascending), piece):
            runs = extents(ascending[begin : begin + piece])
            for first, end, _ in chain.from_iterable(runs):
                for storage in range(first // storage_rows, (end - 1) // storage_rows + 1):
                    read += 0 if storage in cached else storage_rows
                    cached[storage] = None
                    cached.move_to_end(storage)
                    if len(cached) > places:
                        cached.popitem(last=False)
        start = stop
    return read


@pytest.mark.parametrize("storage_rows", [64, 385, 512, 2_048])
@pytest.mark.parametrize(
    ("kind", "chunk"), [("none", 49_152), ("block", 49_152), ("block", 4_096), ("full", 50_000)]
)
@pytest.mark.parametrize("sample_bytes", [21_744, 4_096])
def test_a_file_is_read_as_often_as_by_the_trainers_own_order(
    kind, chunk, storage_rows, sample_bytes
):
    shuffle = stored_shuffle(ChunkedLoader(shuffle=kind), SAMPLES, sample_bytes)
    reading = {
        "none": Reading(1.0, 1.0, 1, PIECE_BYTES // sample_bytes),
        "full": Reading(chunk / SAMPLES, 1.0, 1, PIECE_BYTES // sample_bytes),
        "block": Reading(
            min(1.0, chunk / GROUP),
            max(chunk, GROUP) / SAMPLES,
            shuffle.block,
            PIECE_BYTES // sample_bytes,
        ),
    }[kind]
    array = FieldFacts((sample_bytes,), "uint8")
    factor = read_amplification(array, storage_rows, reading)
    read = rows_read(shuffle, chunk, sample_bytes, storage_rows)
    assert factor == pytest.approx(read / SAMPLES, rel=0.1)


IN_BATCHES = replace(
    CHUNKED.fields["features"], storage="record_batches", chunk_rows=65_536, compression=None
)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [({"num_workers": 0}, 1.0), ({"num_workers": 2}, 2.0), ({"num_workers": 4}, 4.0)],
)
def test_processes_that_take_turns_read_each_record_batch_for_themselves(settings, factor):
    """However large it is: none is read twice by one of them."""
    asked = by_torch(shuffle="none", **settings)
    spec = RunSpec.model_validate_json(json.dumps(overlay(REQUEST, asked)))
    reading = Case(spec, world()).reading
    assert reading is not None
    assert read_amplification(IN_BATCHES, 65_536, reading) == factor


def test_arrow_files_are_told_by_their_record_batches():
    large = weather(**{**vars(LARGE), "fields": {**FIELDS, "features": IN_BATCHES}})
    plan = plan_of(loader(shuffle="full", chunk_size="1GiB"), world(large))
    (issue,) = [i for i in plan.issues if i.code == CODE]
    assert "It is stored in record batches that can only be read whole" in issue.why
    small = replace(IN_BATCHES, chunk_rows=1)
    apart = weather(**{**vars(LARGE), "fields": {**FIELDS, "features": small}})
    assert CODE not in codes(plan_of(loader(shuffle="full", chunk_size="1GiB"), world(apart)))


def stored_in(rows: int, **changes: object) -> DatasetFacts:
    """The large file, compressed in chunks of so many rows."""
    fields = {**FIELDS, "features": replace(CHUNKED.fields["features"], chunk_rows=rows)}
    return weather(**{**vars(LARGE), "fields": fields, **changes})


@pytest.mark.parametrize(
    ("shuffle", "rows", "found"),
    [("block", 128, False), ("block", 2_048, True), ("none", 512, False), ("none", 2_048, True)],
)
def test_storage_chunks_above_the_cache_are_read_again_in_blocks_and_in_order_too(
    shuffle, rows, found
):
    plan = plan_of(loader(shuffle=shuffle, chunk_size="1GiB"), world(stored_in(rows)))
    assert (CODE in codes(plan)) == found


def test_blocks_are_no_fix_where_they_would_be_read_again_too():
    asked = loader(shuffle="full", chunk_size="1GiB")
    (issue,) = [i for i in plan_of(asked, world(stored_in(2_048))).issues if i.code == CODE]
    assert issue.fix == []
    assert "In blocks it would still be " in issue.why
    assert "a file without chunks, or with chunks of few rows and at most 32.0 MiB" in issue.why


def test_a_fix_tells_how_often_the_file_is_read_with_it():
    asked = loader(shuffle="full", chunk_size="1GiB")
    (issue,) = [i for i in plan_of(asked, world(stored_in(128))).issues if i.code == CODE]
    assert {op.path: op.value for op in issue.fix}["/data/loader/shuffle"] == "block"
    assert "With the fix it is about 1.0 times" in issue.why


def test_what_fits_on_the_device_may_stay_there():
    small = with_field("features", storage="chunked", chunk_rows=2_048, compression="gzip")
    (issue,) = [
        i for i in plan_of(loader(chunk_size="4MiB"), world(small)).issues if i.code == CODE
    ]
    assert {op.path: op.value for op in issue.fix} == {"/data/loader/residency": "auto"}


@pytest.mark.parametrize("asked", [loader(), loader(shuffle="block"), by_torch()], ids=str)
def test_where_no_sample_is_left_to_train_on_there_is_nothing_to_read(asked):
    split = {"data": {"split": {"validation_fraction": 0.9}}}
    found = codes(plan_of(overlay(asked, split), world(weather(samples=3))))
    assert "correctness.no_training_steps" in found
    assert not {CODE, "speed.network_full_shuffle"} & set(found)
