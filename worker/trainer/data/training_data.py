"""What a recipe reads of the data before the training: arrays in pieces, on the host."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from worker.trainer.data.checked import Checked
from worker.trainer.data.feed.rows import piece_bounds, read_rows
from worker.trainer.data.layouts.layout import packed_fields
from worker.trainer.data.source import Arrays, Field, Rows, in_rows
from worker.trainer.data.split import Part
from worker.trainer.report.preparing import Preparing


@dataclass(frozen=True)
class TrainingData:
    """Every dataset that a run reads, and which samples of the first are the training part."""

    _each: tuple[Checked, ...]
    """First the one that is trained on."""
    _part: Part
    _preparing: Preparing

    @property
    def fields(self) -> Mapping[str, Field]:
        """Shape and type of a sample, by the names of the spec's inputs and targets."""
        return self._trained.fields

    @property
    def num_samples(self) -> int:
        """Of the training part."""
        return len(self._part)

    @property
    def all_samples(self) -> int:
        """Of all parts, also where validation and test are datasets of their own."""
        return sum(one.num_samples for one in self._each)

    def pieces(self, *names: str) -> Iterator[Arrays]:
        """These arrays of the training part, in the file's order: (samples, *shape) each. The next
        piece overwrites this one. A ragged array comes filled with zeros, with its lengths; packed
        ones as in a batch, with no row too many.

        Raises DataError, DatasetChanged; StopRequested when the run is to stop meanwhile.
        """
        return self._pieces(self._trained, names, self._part.all_rows())

    def whole(self, *names: str) -> Iterator[Arrays]:
        """The same of all samples, one dataset behind another, held-out ones too: for what is no
        secret of theirs, such as which entities there are, and to find what is wrong with them
        before the first step. No piece is of two datasets.
        """
        for one in self._each:
            yield from self._pieces(one, names, np.arange(one.num_samples))

    def place_of(self, sample: int) -> str:
        """Where a person finds a sample, as `whole` counts them: its row and the file's name."""
        for one in self._each:
            if sample < one.num_samples:
                return one.stored.place_of(sample)
            sample -= one.num_samples
        raise IndexError(sample)

    @property
    def _trained(self) -> Checked:
        return self._each[0]

    def _pieces(self, checked: Checked, names: tuple[str, ...], rows: Rows) -> Iterator[Arrays]:
        buffers: Arrays = {}
        layouts = [checked.layouts[name] for name in names]
        with closing(checked.open_some(names)) as source:
            for start, stop in piece_bounds(source.fields, len(rows)):
                if not buffers:
                    fields = in_rows(source.fields).items()
                    buffers = {name: np.empty((stop, *f.shape), f.dtype) for name, f in fields}
                piece = {name: array[: stop - start] for name, array in buffers.items()}
                read_rows(source, rows[start:stop], piece)
                yield piece | packed_fields(layouts, source, rows[start:stop])
                self._preparing.piece_done()
