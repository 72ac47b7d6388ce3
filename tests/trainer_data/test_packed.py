"""Packed graphs: how a file keeps them, and batches of them, the same by every loader."""

import tempfile
from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.planning.packing import rounded_rows
from app.service.inventory import field_facts
from tests.trainer_data.factories import entry, kept, make_spec, open_parts, preparing
from worker.trainer.data.batch import Batch
from worker.trainer.data.checked import check_all
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed import rows as rows_module
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.data.layouts.packed import DeviceGraphs
from worker.trainer.data.source import bytes_per_sample
from worker.trainer.errors import DataError
from worker.trainer.tools.inspect import inspect

CPU = torch.device("cpu")
GIB = 2**30
RESIDENT: dict[str, Any] = {"kind": "chunked", "residency": "resident"}
STREAM: dict[str, Any] = {"kind": "chunked", "residency": "stream", "chunk_size": "1KiB"}
LOADER: dict[str, Any] = {"kind": "dataloader"}
PROCESS = {**LOADER, "num_workers": 2, "multiprocessing_context": "forkserver"}
Graphs = list[dict[str, NDArray[Any]]]


def graphs_of(nodes: Iterable[int], seed: int = 3, *, values: bool = True) -> Graphs:
    """With so many nodes each, and up to twice as many edges."""
    random, found = np.random.default_rng(seed), []
    for count in nodes:
        edges = int(random.integers(0, 2 * count)) if count else 0
        graph: dict[str, NDArray[Any]] = {
            "nodes": random.integers(0, 200, (count, 3)).astype(np.uint8),
            "edges": random.integers(0, max(1, count), (edges, 2)).astype(np.uint16),
        }
        if values:
            graph["edge_values"] = random.integers(0, 5, (edges, 2)).astype(np.int8)
        found.append(graph)
    return found


def many(count: int = 150, largest: int = 9) -> list[int]:
    """Sizes of which some are 0."""
    drawn = np.random.default_rng(1).integers(0, largest + 1, count - 3).tolist()
    return [0, largest, *drawn, 0]


def write(path: Path, graphs: Graphs) -> Path:
    """With targets that say the row."""
    with h5py.File(path, "w") as file:
        write_packed(file, "graphs", graphs)
        file["targets"] = np.arange(len(graphs), dtype=np.float32)
    return path


opened = partial(open_parts, "graphs")


def rows_checked(batches: Iterable[Batch], graphs: Graphs) -> list[int]:
    """The rows of the batches, which have to hold what the file does, and nothing behind it."""
    seen: list[int] = []
    for batch in batches:
        rows = batch.arrays["targets"].int().tolist()
        nodes, of, edges = (batch.arrays[f"graphs{part}"] for part in ("", "/samples", "/edges"))
        values = batch.arrays.get("graphs/edge_values")
        node = edge = 0
        for number, row in enumerate(rows):
            graph = graphs[row]
            end, edge_end = node + len(graph["nodes"]), edge + len(graph["edges"])
            assert nodes[node:end].numpy().tobytes() == graph["nodes"].tobytes()
            assert (of[node:end] == number).all()
            assert (edges[edge:edge_end].numpy() == graph["edges"].astype(np.int64) + node).all()
            if values is not None:
                assert values[edge:edge_end].numpy().tobytes() == graph["edge_values"].tobytes()
                assert (values[edge_end:] == 0).all() or number < batch.size - 1
            assert batch.arrays["graphs/counts"][number].tolist() == [end - node, edge_end - edge]
            node, edge = end, edge_end
        assert len(rows) == batch.size
        assert (nodes[node:] == 0).all()
        assert (of[node:] == batch.size).all()
        assert len(nodes) == len(of) > node
        assert (edges[edge:] == len(nodes) - 1).all()
        seen += rows
    return seen


@pytest.mark.parametrize("shuffle", ["full", "block", "none"])
def test_every_loader_gives_the_same_batches(tmp_path, shuffle):
    graphs = graphs_of(many())
    path, seen = write(tmp_path / "a.h5", graphs), []
    in_blocks = {"shuffle_group": 32} if shuffle == "block" else {}
    loaders = [{**one, **in_blocks} for one in (RESIDENT, STREAM)]
    for loader in (*loaders, *([] if in_blocks else [LOADER, PROCESS])):
        data = opened(path, {**loader, "shuffle": shuffle})
        assert data.validation is not None
        assert data.test is not None
        parts = [data.train.iterate(0), data.train.iterate(1, 48), data.validation.iterate(0)]
        batches = [kept(part) for part in (*parts, data.test.iterate(0))]
        data.close()
        rows = [rows_checked(part, graphs) for part in batches]
        assert [len(part) for part in rows] == [105, 57, 30, 15]
        seen.append([batch.arrays for part in batches for batch in part])
    for other in seen[1:]:
        for one, found in zip(seen[0], other, strict=True):
            assert one.keys() == found.keys()
            assert all(torch.equal(one[name], found[name]) for name in one)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=3, max_size=60),
    values=st.booleans(),
    loader=st.sampled_from([RESIDENT, STREAM, LOADER]),
    shuffle=st.sampled_from(["full", "none"]),
    batch_size=st.integers(1, 20),
    at_once=st.integers(1, 50),
)
def test_any_sizes(sizes, values, loader, shuffle, batch_size, at_once):
    graphs = graphs_of(sizes, values=values)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "EXTENTS_AT_ONCE", at_once)
        patch.setattr("worker.trainer.data.feed.transfer.HOST_PIECE_BYTES", 8 * at_once)
        path = write(Path(folder) / "a.h5", graphs)
        split = {"method": "chronological", "validation_fraction": 0.0}
        data = opened(path, {**loader, "shuffle": shuffle}, batch_size, split=split)
        batches = kept(data.train.iterate(0))
        rows = rows_checked(batches, graphs)
        assert sorted(rows) == list(range(len(graphs)))
        for position in accumulate(batch.size for batch in batches):
            assert rows_checked(data.train.iterate(0, position), graphs) == rows[position:]
        data.close()


def test_batches_have_few_shapes_whatever_the_epoch(tmp_path):
    """Eight at most of whole batches, of which one is for what was never seen; the largest samples
    of all would fit into it.
    """
    sizes = np.random.default_rng(0).geometric(0.1, 700).clip(1, 60)
    data = opened(write(tmp_path / "a.h5", graphs_of(sizes)), RESIDENT)
    shapes = data.train.shapes
    assert 4 <= len(shapes.by_size[16]) <= 8
    assert len(shapes.usual(16)) == len(shapes.by_size[16]) - 1
    rows = [bucket["graphs"] for bucket in shapes.by_size[16]]
    assert rows == sorted(rows)
    assert rows[-1] > np.sort(sizes[:490])[-16:].sum()
    seen, filled, free = set(), 0, 0
    for epoch in range(20):
        for batch in data.train.iterate(epoch):
            seen.add((batch.size, *(len(batch.arrays[n]) for n in ("graphs", "graphs/edges"))))
            filled += int((batch.arrays["graphs/samples"] < batch.size).sum())
            free += len(batch.arrays["graphs"])
    data.close()
    assert len(seen) <= 8 + 1  # and the last batch of an epoch
    assert filled / free > 0.8


def test_a_probe_is_given_the_rows_that_steps_are_captured_with(tmp_path):
    """Of batches drawn at random; an inspection by an earlier version knew no deviation."""
    sizes = np.random.default_rng(0).geometric(0.1, 7_000).clip(1, 60)
    path = write(tmp_path / "a.h5", graphs_of(sizes))
    split = {"method": "chronological", "validation_fraction": 0.0}
    data = opened(path, {**RESIDENT, "shuffle": "full"}, 16, split=split)
    captured = data.train.shapes.usual(16)[-1]
    data.close()
    described = inspect(path)["fields"]["graphs"]
    known = field_facts(described)
    probed = {name: rounded_rows(one.likely(16)) for name, one in known.spreads("graphs").items()}
    assert probed == captured
    assert known.lengths is not None
    before = {key: each for key, each in described["lengths"].items() if key != "std"}
    earlier = field_facts({**described, "lengths": before}).spreads("graphs")["graphs"]
    assert known.lengths.std is not None
    assert earlier.std > known.lengths.std
    assert earlier.likely(1) == earlier.most == 60


def test_what_is_measured_in_order_has_no_shape_to_spare(tmp_path):
    data = opened(write(tmp_path / "a.h5", graphs_of(many())), RESIDENT)
    assert data.validation is not None
    shapes, batches = data.validation.shapes, kept(data.validation.iterate(0))
    assert shapes.usual(16) == shapes.by_size[16]
    most = max(int((one.arrays["graphs/samples"] < one.size).sum()) for one in batches)
    assert shapes.largest["graphs"] - most <= 8
    data.close()


def test_a_ladder_that_cuts_batches_meets_other_shapes(tmp_path):
    from app.planning.ladder import Rung

    path = write(tmp_path / "a.h5", graphs_of(many()))
    spec = make_spec({"inputs": ["graphs"]}, training={"batch_size": 16})
    data = open_data(
        spec, {"numbers": entry(path)}, CPU, preparing(tmp_path), GIB, rung=Rung(1, batch=5)
    )
    assert {batch.size for batch in data.train.iterate(0)} <= {5, 1, 3}
    assert sorted(rows_checked(data.train.iterate(1), graphs_of(many()))) == list(range(120))
    data.close()


def test_a_sample_by_itself_has_its_own_rows(tmp_path):
    """As a recipe's dataset is given it."""
    graphs = graphs_of(many())
    data = opened(write(tmp_path / "a.h5", graphs), LOADER)
    samples = data._samples
    sample = samples[1]  # type: ignore[index]
    assert sample["graphs"].tobytes() == graphs[1]["nodes"].tobytes()
    assert sample["graphs/edges"].tolist() == graphs[1]["edges"].tolist()
    assert sample["graphs/samples"].tolist() == [0] * 9
    assert sample["targets"] == 1
    samples.close()
    data.close()


def test_what_a_recipe_reads_before_the_training_is_packed_too(tmp_path):
    graphs = graphs_of(many())
    data = opened(write(tmp_path / "a.h5", graphs), RESIDENT)
    [piece] = data.for_recipe(preparing(tmp_path)).whole("graphs", "targets")
    assert len(piece["graphs"]) == sum(len(graph["nodes"]) for graph in graphs)
    assert piece["graphs/edges"].max() < len(piece["graphs"])
    assert len(piece["targets"]) == 150
    data.close()


def test_nodes_have_a_mean(tmp_path):
    graphs = graphs_of(many())
    data = opened(write(tmp_path / "a.h5", graphs), RESIDENT)
    [(mean, std)] = data.statistics(["graphs"], preparing(tmp_path)).values()
    nodes = np.concatenate([graph["nodes"] for graph in graphs[:105]])
    torch.testing.assert_close(mean, torch.from_numpy(nodes.mean(0)))
    torch.testing.assert_close(std, torch.from_numpy(nodes.std(0)))
    data.close()


def test_the_guard_reckons_with_the_bytes_that_the_trainer_finds(tmp_path):
    path = write(tmp_path / "a.h5", graphs_of(many()))
    checked = check_all(make_spec({"inputs": ["graphs"]}).data, {"numbers": entry(path)})["numbers"]
    layout = checked.layouts["graphs"]
    facts = field_facts(inspect(path)["fields"]["graphs"])
    assert facts.kept_bytes == layout.kept_bytes
    assert facts.longest_bytes == layout.spare_bytes
    assert facts.sample_bytes == bytes_per_sample(layout.fields)
    whole = layout.bytes_of(np.arange(150))
    assert whole <= 150 * layout.kept_bytes < whole + 3 * 150
    chunk = layout.chunk(20, CPU)
    assert isinstance(chunk, DeviceGraphs)
    assert sum(array.nbytes for array in chunk._values.values()) <= 20 * layout.kept_bytes + (
        layout.spare_bytes
    )


def test_the_inspection_tells_of_nodes_and_edges(tmp_path):
    graphs = graphs_of(many())
    report = inspect(write(tmp_path / "a.h5", graphs))
    assert report["problems"] == report["warnings"] == []
    assert report["samples"] == 150
    found, edges = report["fields"]["graphs"], [len(graph["edges"]) for graph in graphs]
    assert (found["shape"], found["dtype"], found["sorted"]) == ([3], "uint8", None)
    spread = {"std": np.std(many())}
    assert found["lengths"] == {"min": 0, "mean": np.mean(many()), "max": 9, **spread}
    assert found["edges"] == {
        "min": 0, "mean": np.mean(edges), "max": max(edges), "std": np.std(edges),
        "dtype": "uint16", "shape": [2], "values_dtype": "int8",
    }  # fmt: skip
    assert report["layout"]["groups"].keys() == set()


def spoil(group: h5py.Group, name: str, array: NDArray[Any]) -> None:
    del group[name]
    group[name] = array


@pytest.mark.parametrize(
    ("part", "array", "told"),
    [
        ("node_offsets", np.array([0, 2], np.int64), "end with 2, and"),
        ("edge_offsets", np.array([0, 4], np.int64), "end with 4, and"),
        ("node_offsets", np.ones(151), "not one int64 for each sample"),
        ("edges", np.zeros((7, 3), np.int64), "edge_offsets' that end with"),
        ("edge_values", np.zeros((7, 2), np.int8), "has 7 'edge_values' and"),
        ("edge_values", np.array(["a"], "S1"), "edge_values' that has dtype |S1"),
    ],
)
def test_what_does_not_hold_together_is_refused(tmp_path, part, array, told):
    path = write(tmp_path / "a.h5", graphs_of(many()))
    with h5py.File(path, "r+") as file:
        spoil(file["graphs"], part, array)
    [problem] = inspect(path)["problems"]
    assert problem["code"] == "damaged_packed"
    assert told in problem["message"]
    with pytest.raises(DataError, match="The packed graphs 'graphs' cannot be used"):
        opened(path, RESIDENT)


@pytest.mark.parametrize("number", [3, 65_535])
def test_an_edge_out_of_its_sample_is_found_by_the_inspection(tmp_path, number):
    graphs = graphs_of([3, 3, 5])
    graphs[1]["edges"] = np.array([[0, 1], [2, number]], np.uint16)
    graphs[1]["edge_values"] = np.zeros((2, 2), np.int8)
    [problem] = inspect(write(tmp_path / "a.h5", graphs))["problems"]
    assert (
        f"an edge between the nodes 2 and {number} in sample 1, whose 3 nodes"
        in (problem["message"])
    )


def test_what_else_lies_in_the_group_is_left_out_with_a_warning(tmp_path):
    path = write(tmp_path / "a.h5", graphs_of(many()))
    with h5py.File(path, "r+") as file:
        file["graphs/names"] = np.ones(7)
    report = inspect(path)
    assert sorted(report["fields"]) == ["graphs", "targets"]
    assert [warning["code"] for warning in report["warnings"]] == ["unusable_array"]
    assert "'graphs/names' lies in the group of packed graphs" in report["warnings"][0]["message"]
