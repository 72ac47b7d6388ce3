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
from worker.trainer.preparing import Preparing


@dataclass(frozen=True)
class TrainingData:
    """The dataset that is trained on, and which of its samples are the training part."""

    _checked: Checked
    _part: Part
    _preparing: Preparing

    @property
    def fields(self) -> Mapping[str, Field]:
        """Shape and type of a sample, by the names of the spec's inputs and targets."""
        return self._checked.fields

    @property
    def num_samples(self) -> int:
        """Of the training part."""
        return len(self._part)

    @property
    def all_samples(self) -> int:
        """Of the whole dataset."""
        return self._checked.num_samples

    def pieces(self, *names: str) -> Iterator[Arrays]:
        """These arrays of the training part, in the file's order: (samples, *shape) each. The next
        piece overwrites this one. A ragged array comes filled with zeros, with its lengths; packed
        ones as in a batch, with no row too many.

        Raises DataError, DatasetChanged; StopRequested when the run is to stop meanwhile.
        """
        return self._pieces(names, self._part.all_rows())

    def whole(self, *names: str) -> Iterator[Arrays]:
        """The same of all samples, held-out ones too: for what is no secret of theirs, such as
        which entities there are.
        """
        return self._pieces(names, np.arange(self.all_samples))

    def place_of(self, sample: int) -> str:
        """Where a person finds a sample of the whole dataset: its row and the file's name."""
        return self._checked.stored.place_of(sample)

    def _pieces(self, names: tuple[str, ...], rows: Rows) -> Iterator[Arrays]:
        buffers: Arrays = {}
        layouts = [self._checked.layouts[name] for name in names]
        with closing(self._checked.open_some(names)) as source:
            for start, stop in piece_bounds(source.fields, len(rows)):
                if not buffers:
                    fields = in_rows(source.fields).items()
                    buffers = {name: np.empty((stop, *f.shape), f.dtype) for name, f in fields}
                piece = {name: array[: stop - start] for name, array in buffers.items()}
                read_rows(source, rows[start:stop], piece)
                yield piece | packed_fields(layouts, source, rows[start:stop])
                self._preparing.piece_done()
