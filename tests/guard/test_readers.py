"""What reading takes of the host's memory."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.guard.case import Case
from app.guard.facts import Facts
from app.guard.memory.budget import PHASES
from app.guard.memory.memory_plan import MemoryPlan
from app.planning.residency import CHUNK_CACHE_BYTES
from app.spec.layers import overlay
from app.spec.run import RunSpec
from tests.guard.world import CPU, FIELDS, REQUEST, RTX, weather, world


def plan_with(loader: dict[str, Any], facts: Facts) -> MemoryPlan:
    spec = json.dumps(overlay(REQUEST, {"data": {"loader": loader}}))
    return Case(RunSpec.model_validate_json(spec), facts).memory


PACKED = replace(FIELDS["features"], storage="record_batches", chunk_rows=10_000)


@pytest.mark.parametrize(
    ("loader", "columns"),
    [
        # Each of two threads has a record batch as stored and unpacked, and the last one stays.
        ({"kind": "chunked", "residency": "stream"}, 2 * 2 + 1),
        ({"kind": "chunked", "residency": "resident"}, 2 * 2 + 1),
        ({"kind": "dataloader", "num_workers": 0}, 2 * 2 + 1),
        # Two processes for the training and two for the validation, with a thread each.
        ({"kind": "dataloader", "num_workers": 2}, 4 * 3),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_record_batches_are_unpacked_in_memory_of_the_host(loader, columns):
    packed = weather(samples=50_000, fields={**FIELDS, "features": PACKED})
    for devices in ((CPU,), (RTX,)):
        plan = plan_with(loader, world(packed, devices=devices))
        [item] = [item for item in plan.host.items if item.name == "unpacking"]
        assert item.bytes == columns * 10_000 * 360 * 15 * 4
        assert item.phases == (("building",) if plan.data.kind == "resident" else PHASES)
    items = plan_with(loader, world()).host.items
    assert [item.bytes for item in items if item.name == "unpacking"] == [0]


BY_HDF5 = replace(FIELDS["features"], storage="chunked", compression="szip", chunk_rows=64)


@pytest.mark.parametrize(
    ("loader", "training", "evaluating"),
    [
        ({"kind": "chunked", "residency": "stream"}, 1, 1),
        ({"kind": "chunked", "residency": "resident"}, 1, 0),
        ({"kind": "dataloader", "num_workers": 0}, 1, 1),
        ({"kind": "dataloader", "num_workers": 2}, 2, 2),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_chunks_that_hdf5_keeps_unpacked_are_memory_of_the_host(loader, training, evaluating):
    facts = {"features": BY_HDF5, "targets": replace(FIELDS["targets"], storage="chunked")}
    by_hdf5 = weather(samples=50_000, fields={**FIELDS, **facts})
    for devices in ((CPU,), (RTX,)):
        plan = plan_with(loader, world(by_hdf5, devices=devices))
        items = {item.name: item for item in plan.host.items}
        assert items["statistics_chunk_cache"].bytes == CHUNK_CACHE_BYTES
        assert items["statistics_chunk_cache"].phases == PHASES
        assert items["chunk_cache"].bytes == training * CHUNK_CACHE_BYTES
        is_resident = plan.data.kind == "resident"
        assert items["chunk_cache"].phases == (("building",) if is_resident else PHASES)
        if evaluating:
            assert items["evaluation_chunk_cache"].bytes == evaluating * CHUNK_CACHE_BYTES
            assert items["evaluation_chunk_cache"].phases == ("evaluating",)
        assert ("evaluation_chunk_cache" in items) == (not is_resident)


@pytest.mark.parametrize(
    ("compression", "chunk_rows", "samples", "by_hdf5", "compared"),
    [
        ("lzf", 64, 50_000, CHUNK_CACHE_BYTES, 0),
        # All that there is to train on, in whole chunks.
        ("bitshuffle", 64, 1_000, 13 * 64 * 360 * 15 * 4, 0),
        ("lzf", 700, 10, 700 * 360 * 15 * 4, 0),
        # Unpacked past HDF5: seven rows, each in a chunk, are compared with what HDF5 reads.
        (None, 2, 50_000, 0, 7 * 2 * 360 * 15 * 4),
        ("gzip", 64, 50_000, 0, 7 * 64 * 360 * 15 * 4),
        ("zstd", 1_000, 50_000, 0, CHUNK_CACHE_BYTES),
        ("gzip", 700, 100, 0, 700 * 360 * 15 * 4),
    ],
)
def test_hdf5_keeps_what_it_unpacks(compression, chunk_rows, samples, by_hdf5, compared):
    features = replace(BY_HDF5, compression=compression, chunk_rows=chunk_rows)
    facts = world(weather(samples=samples, fields={**FIELDS, "features": features}))
    plan = plan_with({"kind": "dataloader"}, facts)
    items = {item.name: item.bytes for item in plan.host.items}
    assert (items["chunk_cache"], items["opening_chunk_cache"]) == (by_hdf5, compared)
