"""The samples of a dataset: fields as a batch has them, whatever the layout of each array."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from worker.trainer.data.layouts.layout import Layout
from worker.trainer.data.source import Extents, Field, Source

OpenArrays = Callable[[Sequence[str]], Source]
"""Opens arrays of the dataset that are equally long, by name."""


class SampleSource:
    """A source of samples. Arrays that have a row a sample are read together; of those that do not,
    `read` also gives what they are stored as.
    """

    def __init__(self, layouts: Mapping[str, Layout], open_arrays: OpenArrays) -> None:
        """By the name of each array, all with as many samples. Raises what `open_arrays` does."""
        self._layouts = tuple(layouts.values())
        self.fields: Mapping[str, Field] = {
            name: field for one in self._layouts for name, field in one.fields.items()
        }
        self.num_samples = self._layouts[0].num_samples
        self._in_rows = tuple(name for name, one in layouts.items() if not one.stored)
        self._stored: dict[str, Source] = {}
        self._rows = open_arrays(self._in_rows) if self._in_rows else None
        try:
            for name in (name for one in self._layouts for name in one.stored):
                self._stored[name] = open_arrays((name,))
        except BaseException:
            self.close()
            raise
        self.places_rows = all(source.places_rows for source in self._sources())

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in out[name]: C-contiguous, the field's dtype."""
        rows = {name: out[name] for name in self._in_rows if name in out}
        if rows and self._rows:
            self._rows.read(extents, rows)
        for name in self._stored.keys() & out.keys():
            self._stored[name].read(extents, {name: out[name]})
        for layout in self._layouts:
            layout.read(self, extents, out)

    def close(self) -> None:
        for source in self._sources():
            source.close()

    def _sources(self) -> list[Source]:
        return [*([self._rows] if self._rows else []), *self._stored.values()]
