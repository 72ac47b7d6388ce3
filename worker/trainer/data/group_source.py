"""Arrays that an HDF5 file keeps as groups, as a source of samples beside its plain arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from worker.trainer.data.hdf5 import Hdf5Source, Layout, Stamp
from worker.trainer.data.ragged import filled_up
from worker.trainer.data.ragged_files import VALUES, Ragged
from worker.trainer.data.read_threads import READ_THREADS
from worker.trainer.data.rows import each_row, some_at_once
from worker.trainer.data.source import (
    LENGTH,
    Extent,
    Extents,
    Field,
    Source,
    lengths_of,
)
from worker.trainer.data.window_files import SERIES, Windows, expand
from worker.trainer.errors import DataError


@dataclass(frozen=True)
class Groups:
    """Arrays of a file that are kept as groups, by name."""

    windows: Mapping[str, Windows] = field(default_factory=dict)
    ragged: Mapping[str, Ragged] = field(default_factory=dict)

    def stored(self, name: str) -> str:
        """The array of the file that has the data of this one."""
        if name in self.windows:
            return f"{name}/{SERIES}"
        return f"{name}/{VALUES}" if name in self.ragged else name

    def of(self, names: Iterable[str]) -> "Groups":
        wanted = set(names)
        return Groups(
            {name: one for name, one in self.windows.items() if name in wanted},
            {name: one for name, one in self.ragged.items() if name in wanted},
        )


class GroupSource:
    """Fields of one HDF5 file of which some are kept as groups, and others as plain arrays.

    `read` expands windows, and fills ragged samples up to the longest; both may also be read as
    they are stored.
    """

    def __init__(
        self,
        path: Path,
        names: Iterable[str],
        groups: Groups,
        stamp: Stamp | None = None,
        layout: Layout | None = None,
        threads: int = READ_THREADS,
    ) -> None:
        """`groups`: what was found of these names; the rest as for Hdf5Source.

        Raises DataError, DatasetChanged, or SpecMismatch for a name that is not there.
        """
        names = tuple(names)
        self.groups = groups.of(names)
        self.windows, self.ragged = self.groups.windows, self.groups.ragged
        self._opened: list[Hdf5Source] = []

        def opened(*arrays: str) -> Hdf5Source:
            self._opened.append(Hdf5Source(path, arrays, stamp, layout, threads))
            return self._opened[-1]

        kept = (*self.windows, *self.ragged)
        try:
            plain = [name for name in names if name not in kept]
            self.plain = opened(*plain) if plain else None
            self.stored = {name: opened(self.groups.stored(name)) for name in kept}
            self.num_samples = self._common_length(path)
        except BaseException:
            self.close()
            raise
        self.stamp = self._opened[0].stamp
        self.layout = Layout(
            {name: place for one in self._opened for name, place in one.layout.direct.items()},
            {name: chunks for one in self._opened for name, chunks in one.layout.packed.items()},
        )
        read_by_row = (self.plain, *(self.stored[name] for name in self.ragged))
        self.places_rows = all(source.places_rows for source in read_by_row if source)
        self.fields: Mapping[str, Field] = dict(self._fields(names))

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in out[name]: C-contiguous, the field's dtype.
        Of groups those alone that `out` names.
        """
        if self.plain:
            self.plain.read(extents, out)
        for name in self.windows.keys() & out.keys():
            for start, stop, place in extents:
                into = out[name][place : place + stop - start]
                read = partial(self._read_steps, name)
                expand(self.windows[name], slice(start, stop), read, into)
        if self.ragged:
            self._read_ragged(extents, out)

    def read_values(self, name: str, extents: Extents, out: NDArray[Any]) -> None:
        """Values of a ragged array: those of each extent, which count values, to their places."""
        for some in some_at_once(extents):
            self.stored[name].read(some, {self.groups.stored(name): out})

    def close(self) -> None:
        for source in self._opened:
            source.close()

    def _fields(self, names: Sequence[str]) -> Iterable[tuple[str, Field]]:
        for name in names:
            if name in self.ragged:
                yield name, self.ragged[name].field
                yield lengths_of(name), LENGTH
            elif name in self.windows:
                yield name, self.windows[name].field
            elif self.plain:
                yield name, self.plain.fields[name]

    def _read_steps(self, name: str, start: int, out: NDArray[Any]) -> None:
        steps = Extents.of(Extent(start, start + len(out), 0))
        self.stored[name].read(steps, {self.groups.stored(name): out})

    def _read_ragged(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        rows, places = each_row(extents)
        for name, ragged in self.ragged.items():
            lengths = ragged.lengths_at(rows)
            out[lengths_of(name)][places] = lengths
            if name in out:
                filled = out[name]
                for place, length in zip(places.tolist(), lengths.tolist(), strict=True):
                    filled[place, length:] = 0
                values = filled.reshape(-1, *ragged.value.shape)
                self.read_values(name, filled_up(ragged, rows, places), values)

    def _common_length(self, path: Path) -> int:
        lengths = {name: len(one.starts) for name, one in self.windows.items()}
        lengths |= {name: one.num_samples for name, one in self.ragged.items()}
        if self.plain:
            lengths |= dict.fromkeys(self.plain.fields, self.plain.num_samples)
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"The arrays of {path} differ in length ({lengths}), so their rows do not belong"
                " together; write one sample for each in every array."
            )
        return next(iter(lengths.values()))


def open_source(
    path: Path,
    names: Sequence[str],
    groups: Groups,
    stamp: Stamp | None = None,
    layout: Layout | None = None,
    threads: int = READ_THREADS,
) -> Hdf5Source | GroupSource:
    """The source of these fields, of which some are kept as `groups`."""
    mine = groups.of(names)
    if mine.windows or mine.ragged:
        return GroupSource(path, names, mine, stamp, layout, threads)
    return Hdf5Source(path, names, stamp, layout, threads)


def as_groups(source: Source) -> GroupSource:
    if not isinstance(source, GroupSource):
        raise TypeError("this source has no groups")
    return source


def groups_of(source: Source) -> Groups:
    return source.groups if isinstance(source, GroupSource) else Groups()
