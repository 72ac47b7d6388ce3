"""Files that keep graphs packed: what lies in one, how it is checked and written.

A group in place of an array, with the attribute `packed` = 1, holds the arrays `nodes` (nodes of
all samples, …) and `node_offsets` (samples + 1,), int64: sample i has the nodes node_offsets[i] to
node_offsets[i + 1]. `edges` (edges of all samples, 2) and `edge_offsets` say alike which nodes are
connected, as numbers that count from the first node of their sample; `edge_values` (edges, …), if
there, has something of each edge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.formats.hdf5_file import (
    hard_link,
    is_marked,
    read_marked,
    unusable_because,
)
from worker.trainer.data.formats.ragged_files import Ragged, stretches
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError

PACKED = "packed"
NODES, NODE_OFFSETS = "nodes", "node_offsets"
EDGES, EDGE_OFFSETS, EDGE_VALUES = "edges", "edge_offsets", "edge_values"
PARTS = (NODES, NODE_OFFSETS, EDGES, EDGE_OFFSETS, EDGE_VALUES)
VERSION = 1
CHECKED_AT_ONCE = 2**20  # edges


@dataclass(frozen=True, eq=False)
class Packed:
    """Graphs: where the nodes and the edges of each begin, and what one of them is."""

    nodes: Ragged
    edges: Ragged
    edge_values: Field | None
    """Of one edge; None: the file has none."""

    @property
    def num_samples(self) -> int:
        return self.nodes.num_samples

    @property
    def stored(self) -> Mapping[str, Ragged]:
        """The arrays of the group that have a row for each node or edge, by name."""
        found = {NODES: self.nodes, EDGES: self.edges}
        if self.edge_values is not None:
            found[EDGE_VALUES] = Ragged(self.edges.offsets, self.edge_values)
        return found

    def counts_at(self, rows: Rows) -> NDArray[np.int64]:
        """(rows, 2): how many nodes and edges these samples have."""
        return np.stack([self.nodes.lengths_at(rows), self.edges.lengths_at(rows)], 1)


class PackedArray:
    """Packed graphs of an open file, when it is looked into; its rows are its samples."""

    def __init__(self, group: h5py.Group, name: str) -> None:
        """DataError where the group `name` does not hold together, edges included."""
        self.packed = read_packed(group, name)
        _require_edges_inside(group, name, self.packed)
        self.values: h5py.Dataset = group[NODES]
        self.parts: dict[str, h5py.Dataset] = {part: group[part] for part in self.packed.stored}
        self.shape = (self.packed.num_samples, *self.packed.nodes.value.shape)
        """(samples, *shape of one node)."""
        self.dtype = self.packed.nodes.value.dtype


def is_packed(node: Any) -> bool:
    """Whether a group of the file stands for graphs."""
    return is_marked(node, PACKED)


def find_packed(path: Path, names: Sequence[str]) -> dict[str, Packed]:
    """Those of `names` that the file keeps so. DataError where one cannot be used."""
    return read_marked(path, names, PACKED, read_packed, "packed graphs")


def read_packed(group: h5py.Group, name: str) -> Packed:
    """What the group `name` says. DataError where it does not hold together."""
    version = group.attrs[PACKED]
    if np.ndim(version) != 0 or version != VERSION:
        raise _bad(name, f"has the attribute {PACKED} = {version}, and only {VERSION} is known")
    nodes = stretches(group, NODES, NODE_OFFSETS, lambda what: _bad(name, what))
    edges = stretches(group, EDGES, EDGE_OFFSETS, lambda what: _bad(name, what))
    if edges.num_samples != nodes.num_samples:
        counts = (
            f"{nodes.num_samples:,} samples by its nodes and {edges.num_samples:,} by its edges"
        )
        raise _bad(name, f"has {counts}")
    if edges.value.shape != (2,) or edges.value.dtype.kind not in "iu":
        kind = f"{edges.value.dtype.name} {edges.value.shape}"
        raise _bad(name, f"has edges of {kind}, not two whole numbers each")
    return Packed(nodes, edges, _edge_values(group, name, edges))


def _edge_values(group: h5py.Group, name: str, edges: Ragged) -> Field | None:
    if EDGE_VALUES not in group:
        return None
    values = hard_link(group, EDGE_VALUES)
    if not isinstance(values, h5py.Dataset):
        raise _bad(name, f"has no array {EDGE_VALUES!r} of its own")
    if (reason := unusable_because(values)) is not None:
        raise _bad(name, f"has an array {EDGE_VALUES!r} that {reason}")
    if len(values) != edges.offsets[-1]:
        raise _bad(name, f"has {len(values):,} {EDGE_VALUES!r} and {edges.offsets[-1]:,} edges")
    return Field(tuple(values.shape[1:]), values.dtype)


def _require_edges_inside(group: h5py.Group, name: str, packed: Packed) -> None:
    """DataError where an edge names a node that its sample does not have: on a device it would
    reach into another sample, or end a step without a word.
    """
    nodes, edges = packed.nodes, packed.edges
    for begin in range(0, int(edges.offsets[-1]), CHECKED_AT_ONCE):
        ends = group[EDGES][begin : begin + CHECKED_AT_ONCE].astype(np.int64)
        of = np.searchsorted(edges.offsets, np.arange(begin, begin + len(ends)), side="right") - 1
        outside = ((ends < 0) | (ends >= nodes.lengths_at(of)[:, None])).any(1)
        if outside.any():
            edge = int(np.flatnonzero(outside)[0])
            sample, pair = int(of[edge]), ends[edge].tolist()
            count = int(nodes.lengths_at(of[edge : edge + 1])[0])
            raise _bad(
                name,
                f"has an edge between the nodes {pair[0]} and {pair[1]} in sample {sample:,}, whose"
                f" {count:,} nodes are 0 to {count - 1:,}",
            )


def write_packed(
    file: h5py.File, name: str, graphs: Sequence[Mapping[str, NDArray[Any]]]
) -> h5py.Group:
    """Write a group `name` of graphs: `nodes` (nodes, …), `edges` (edges, 2) and, of all or of
    none, `edge_values` (edges, …) of each. DataError, with nothing written, where there is none.
    """
    if not graphs:
        raise DataError(f"There is no sample to write as {name!r}.")
    group = file.create_group(name)
    group.attrs[PACKED] = VERSION
    for part in (NODES, EDGES, *([EDGE_VALUES] if EDGE_VALUES in graphs[0] else [])):
        group[part] = np.concatenate([graph[part] for graph in graphs])
    for part, offsets in ((NODES, NODE_OFFSETS), (EDGES, EDGE_OFFSETS)):
        group[offsets] = np.cumsum([0, *(len(graph[part]) for graph in graphs)], dtype=np.int64)
    return group


def _bad(name: str, what: str) -> DataError:
    return DataError(
        f"The packed graphs {name!r} cannot be used: the group {what}. Write the group again, with"
        f" {NODES!r}, {NODE_OFFSETS!r}, {EDGES!r}, {EDGE_OFFSETS!r} and, if there is something to"
        f" say of edges, {EDGE_VALUES!r}: docs/guide/data.md says what is in each."
    )
