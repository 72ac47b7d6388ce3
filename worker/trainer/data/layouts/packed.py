"""Packed: graphs, whose nodes and edges lie one behind another, in the file as in a batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.trainer.data.feed.rows import each_row, read_stored, rows_in
from worker.trainer.data.formats.packed_files import EDGE_VALUES, EDGES, NODES, Packed
from worker.trainer.data.formats.ragged_files import Ragged
from worker.trainer.data.layouts.layout import Layout, Piece
from worker.trainer.data.layouts.padded import one_behind_another, values_to_sum
from worker.trainer.data.source import NO_ROWS, Extents, Field, Rows, Source
from worker.trainer.data.tensors import empty_arrays

NUMBER = np.dtype(np.int64)
PLACES = Field((2,), NUMBER)
"""Of the nodes and of the edges of a sample."""


@dataclass(frozen=True)
class PackedLayout:
    """A sample is a graph. A batch `graphs` has the nodes of all its graphs in `graphs`, the sample
    that each is of in `graphs/samples`, the two nodes of each edge in `graphs/edges`, as numbers
    in the batch, `graphs/edge_values`, and how many nodes and edges each has in `graphs/counts`.
    """

    name: str
    packed: Packed
    mean_nodes: float
    mean_edges: float
    """Of the dataset that is trained on."""

    @classmethod
    def of(cls, name: str, packed: Packed) -> "PackedLayout":
        samples = max(1, packed.num_samples)
        nodes, edges = packed.nodes.offsets[-1], packed.edges.offsets[-1]
        return cls(name, packed, float(nodes / samples), float(edges / samples))

    @property
    def counts(self) -> str:
        return f"{self.name}/counts"

    @property
    def samples(self) -> str:
        return f"{self.name}/samples"

    @property
    def edges(self) -> str:
        return f"{self.name}/{EDGES}"

    @property
    def edge_values(self) -> str:
        return f"{self.name}/{EDGE_VALUES}"

    @property
    def fields(self) -> Mapping[str, Field]:
        node, values = self.packed.nodes.value, self.packed.edge_values
        found = {
            self.name: replace(node, rows=self.mean_nodes),
            self.counts: PLACES,
            self.samples: Field((), NUMBER, self.mean_nodes, self.counts),
            self.edges: Field((2,), NUMBER, self.mean_edges, self.name),
        }
        if values is not None:
            found[self.edge_values] = replace(values, rows=self.mean_edges)
        return found

    @property
    def arrays(self) -> Mapping[str, Ragged]:
        """Of the file, with a row for each node or edge."""
        return {f"{self.name}/{part}": one for part, one in self.packed.stored.items()}

    @property
    def stored(self) -> Mapping[str, Field]:
        return {name: one.value for name, one in self.arrays.items()}

    @property
    def num_samples(self) -> int:
        return self.packed.num_samples

    @property
    def kept_bytes(self) -> int:
        """With how many nodes and edges it has, and the places where they begin."""
        means = self.mean_nodes, self.mean_edges, self.mean_edges
        each = zip(self.stored.values(), means, strict=False)
        return sum(replace(one, rows=mean).sample_bytes for one, mean in each) + (
            2 * PLACES.sample_bytes
        )

    @property
    def spare_bytes(self) -> int:
        """A chunk has room for the largest graph, however few samples it has."""
        return sum(one.longest * one.value.sample_bytes for one in self.arrays.values())

    @property
    def facts(self) -> Mapping[str, int]:
        return {"longest": self.packed.nodes.longest}

    @property
    def breaks(self) -> Rows:
        return NO_ROWS

    def bytes_of(self, rows: Rows) -> int:
        values = sum(
            int(one.lengths_at(rows).sum()) * one.value.sample_bytes for one in self.arrays.values()
        )
        return values + 2 * PLACES.sample_bytes * len(rows)

    def alike(self, each: Sequence[Layout]) -> "PackedLayout":
        """With the means of the training's."""
        first = next(one for one in each if isinstance(one, PackedLayout))
        return replace(self, mean_nodes=first.mean_nodes, mean_edges=first.mean_edges)

    def read(self, source: Source, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """Of each sample, how many nodes and edges it has."""
        if self.counts in out:
            rows, places = each_row(extents)
            out[self.counts][places] = self.packed.counts_at(rows)

    def pieces_to_sum(self, source: Source, rows: Rows, *, pooled: bool) -> Iterator[Piece]:
        """The nodes, whatever sample they are of."""
        return values_to_sum(source, self.name, (f"{self.name}/{NODES}", self.packed.nodes), rows)

    def rows_in_batch(self, rows: Rows) -> Mapping[str, Rows]:
        nodes, edges = self.packed.counts_at(rows).T
        return self.by_field(nodes, edges)

    def by_field(self, nodes: Any, edges: Any) -> Mapping[str, Any]:
        """What there is of nodes and of edges, by packed field."""
        found = {self.name: nodes, self.samples: nodes, self.edges: edges}
        return found if self.packed.edge_values is None else {**found, self.edge_values: edges}

    def packed_fields(self, source: Source, rows: Rows) -> Mapping[str, NDArray[Any]]:
        counts = self.packed.counts_at(rows)
        begins = np.cumsum(counts, 0) - counts
        nodes, edges = (
            self._read(source, part, rows, begins[:, column])
            for column, part in enumerate((NODES, EDGES))
        )
        found = {
            self.name: nodes,
            self.samples: np.repeat(np.arange(len(rows)), counts[:, 0]),
            self.edges: edges.astype(NUMBER) + np.repeat(begins[:, 0], counts[:, 1])[:, None],
        }
        if self.packed.edge_values is not None:
            found[self.edge_values] = self._read(source, EDGE_VALUES, rows, begins[:, 1])
        return found

    def _read(self, source: Source, part: str, rows: Rows, begins: Rows) -> NDArray[Any]:
        """Of these samples in their order, whose first ones go to `begins`."""
        ragged, order = self.packed.stored[part], np.argsort(rows, kind="stable")
        lengths = ragged.lengths_at(rows)
        out = np.empty((int(lengths.sum()), *ragged.value.shape), ragged.value.dtype)
        some = order[lengths[order] > 0]
        first = ragged.offsets[rows[some]]
        extents = Extents(first, first + lengths[some], begins[some])
        read_stored(source, f"{self.name}/{part}", extents, out)
        return out

    def hold(self, rows: Rows, device: torch.device) -> "DeviceGraphs":
        sizes = {name: int(one.lengths_at(rows).sum()) for name, one in self.arrays.items()}
        return DeviceGraphs(self, sizes, len(rows), device)

    def chunk(self, samples: int, device: torch.device) -> "DeviceGraphs":
        """With room for what so many samples have on average; for the largest graph at least."""
        means = self.mean_nodes, self.mean_edges, self.mean_edges
        sizes = {
            name: max(one.longest, int(np.ceil(samples * mean)))
            for (name, one), mean in zip(self.arrays.items(), means, strict=False)
        }
        return DeviceGraphs(self, sizes, samples, device)


class DeviceGraphs:
    """The nodes and edges of samples, one sample behind another."""

    def __init__(
        self, layout: PackedLayout, sizes: Mapping[str, int], samples: int, device: torch.device
    ) -> None:
        """`sizes`: rows that there is room for, by what is stored."""
        self._layout = layout
        self._values: dict[str, Tensor] = {}
        for name, field in layout.stored.items():
            room = empty_arrays({name: field}, sizes[name], device, pin_memory=False)
            self._values |= room
        places = {"counts": PLACES, "begins": PLACES}
        buffers = empty_arrays(places, samples, device, pin_memory=False)
        self._counts, self._begins = buffers["counts"], buffers["begins"]
        nothing = np.zeros((0, 2), np.int64)
        self._held, self._asked_for = nothing, nothing
        """(samples, 2) on the host: nodes and edges of each sample, in the order in which they lie,
        and in that in which they are asked for."""

    @property
    def rows(self) -> Mapping[str, Tensor]:
        return {self._layout.counts: self._counts}

    @property
    def stored(self) -> Mapping[str, Field]:
        return self._layout.stored

    def fitting(self, rows: Rows) -> int:
        return min(
            int(np.searchsorted(np.cumsum(one.lengths_at(rows)), len(values), side="right"))
            for one, values in zip(self._layout.arrays.values(), self._values.values(), strict=True)
        )

    def pieces(self, ascending: Rows, most_bytes: int) -> Iterator[tuple[str, Tensor, Extents]]:
        self._held = self._asked_for = self._layout.packed.counts_at(ascending)
        for name, ragged in self._layout.arrays.items():
            most = rows_in(ragged.value, most_bytes)
            for places, extents in one_behind_another(ragged, ascending, most):
                yield name, self._values[name][places], extents

    def settle(self, samples: int) -> None:
        """Where each begins, by the counts in the order in which they lie."""
        counts, begins = self._counts[:samples], self._begins[:samples]
        torch.cumsum(counts, 0, out=begins)
        begins -= counts

    def arrange(self, places: Rows) -> None:
        self._asked_for = self._held[places]

    def view(self, start: int, stop: int) -> None:
        """Edges have other numbers in each batch."""

    def packed_rows(self, start: int, stop: int) -> Mapping[str, int]:
        nodes, edges = self._asked_for[start:stop].sum(0).tolist()
        return self._layout.by_field(nodes, edges)

    def gather(self, samples: Tensor | slice, out: Mapping[str, Tensor]) -> None:
        """How many rows there are in all is known of `out`, so nobody waits for the device."""
        layout, counts, device = self._layout, self._counts[samples], self._counts.device
        begins = torch.cumsum(counts, 0) - counts  # in the batch
        moved = self._begins[samples] - begins
        out[layout.counts].copy_(counts)
        of = [
            torch.repeat_interleave(counts[:, column], output_size=len(out[name]))
            for column, name in enumerate((layout.name, layout.edges))
        ]
        where = [
            torch.arange(len(each), device=device) + moved[:, column].index_select(0, each)
            for column, each in enumerate(of)
        ]
        nodes, edges, *edge_values = self._values.values()
        out[layout.samples].copy_(of[0])
        torch.index_select(nodes, 0, where[0], out=out[layout.name])
        ends = out[layout.edges].copy_(torch.index_select(edges, 0, where[1]))
        ends += begins[:, 0].index_select(0, of[1])[:, None]
        for values in edge_values:
            torch.index_select(values, 0, where[1], out=out[layout.edge_values])
