"""Writes a file of overlapping windows anew, as the series that the windows slide over.

`python -m worker.trainer.tools.convert IN OUT.h5`, of an HDF5 file or of Arrow files, prints one
JSON document. Every sample of OUT is that of IN to the last bit
(`worker.trainer.data.formats.window_files` says how it is kept); other arrays and all attributes
are copied. Rows that do not continue the one before begin a new stretch.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial as bound
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.arrow_index import is_arrow, listed
from worker.trainer.data.formats.arrow_source import open_arrow
from worker.trainer.data.formats.hdf5_file import open_file, unusable_because, walk_links
from worker.trainer.data.formats.packed_files import is_packed
from worker.trainer.data.formats.ragged_files import is_ragged
from worker.trainer.data.formats.window_files import (
    LENGTH,
    PIECE_BYTES,
    SERIES,
    STARTS,
    is_windows,
    write_windows,
)
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import converting_command, require_new
from worker.trainer.tools.bad_rows import NotFinite
from worker.trainer.tools.content import Overlap, overlap_of, row_bytes, same_bits, sampled_rows

Look = Callable[[int, NDArray[Any]], None]


class _Stretches:
    """Takes the rows of one array in turn; keeps where each begins in their series, whose steps it
    writes to a file.
    """

    def __init__(self, array: h5py.Dataset, overlap: Overlap, steps: IO[bytes], look: Look) -> None:
        self._array = array
        self._look = look
        self._step = overlap.step
        self._backward = overlap.backward
        self._file = steps
        self._last: NDArray[Any] | None = None
        self._ends: list[Rows] = []
        self.steps = 0

    def run(self) -> Rows:
        """Where each row begins."""
        for rows in self._pieces():
            self._add(rows)
        starts: Rows = np.concatenate(self._ends) - int(self._array.shape[1])
        return np.flip(starts) if self._backward else starts

    def _pieces(self) -> Iterator[NDArray[Any]]:
        """The rows, some at a time; from the last to the first, if they move backward."""
        count, at_once = len(self._array), max(1, PIECE_BYTES // row_bytes(self._array))
        bounds = [(start, min(start + at_once, count)) for start in range(0, count, at_once)]
        for start, stop in reversed(bounds) if self._backward else bounds:
            rows = self._array[start:stop]
            self._look(start, rows)
            yield rows[::-1] if self._backward else rows

    def _add(self, rows: NDArray[Any]) -> None:
        first = rows[:1] if self._last is None else self._last
        before = np.concatenate((first, rows[:-1]))
        now, then, step = same_bits(rows), same_bits(before), self._step
        inner = tuple(range(1, rows.ndim))
        repeats = (now == then).all(axis=inner)
        moves = (now[:, :-step] == then[:, step:]).all(axis=inner) & ~repeats
        if self._last is None:
            repeats[0] = moves[0] = False
        # Each row ends where its series ends by then: it adds nothing, its last steps, or all.
        added = np.where(repeats, 0, np.where(moves, step, rows.shape[1]))
        self._ends.append(self.steps + np.cumsum(added))
        self.steps += int(added.sum())
        self._write(rows, added)
        self._last = rows[-1:].copy()

    def _write(self, rows: NDArray[Any], added: Rows) -> None:
        """The last steps of each row, so many as it adds; those of neighbours that add alike at
        once."""
        borders = np.flatnonzero(np.diff(added)) + 1
        for few in np.split(np.arange(len(rows)), borders):
            count = int(added[few[0]])
            steps = rows[few[0] : few[-1] + 1, rows.shape[1] - count :]
            self._file.write(np.ascontiguousarray(steps).tobytes())


def convert(path: Path, out: Path, *, force: bool = True) -> dict[str, Any]:
    """Write `out`; says what became of each array. DataError when nothing would be saved, or `out`
    is there and must not be replaced (`force`).
    """
    seen = NotFinite()
    with _opened(path) as (arrays, left_out, attributes):
        found = {name: overlap_of(sampled_rows(array)) for name, array in arrays.items()}
        overlaps = {name: overlap for name, overlap in found.items() if overlap is not None}
        if not overlaps:
            raise DataError(
                f"{path} has no array whose rows are overlapping windows of one series (it has"
                f" {', '.join(arrays)}), so it would not become smaller. Register it as it is;"
                " rows in time are cut into samples by --window."
            )
        require_new(out, force=force)
        with whole_file(out) as partial, h5py.File(partial, "w") as target:
            target.attrs.update(attributes)
            for name, array in arrays.items():
                look = bound(seen.look, name)
                if name in overlaps:
                    _write_windows(target, name, array, overlaps[name], look)
                else:
                    copy_array(target, name, array, look)
    return _summary(path, out, overlaps) | {"left_out": left_out, "told": seen.sentences()}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Mapping[str, Any], list[str], Mapping[str, Any]]]:
    """(arrays by name, names of others, attributes of the file)."""
    if is_arrow(path):
        with open_arrow(path) as found:
            yield found.arrays, sorted(found.index.left_out), {}
    else:
        with open_file(path) as file:
            arrays, left_out = arrays_of(file, path)
            yield arrays, left_out, file.attrs


def arrays_of(
    file: h5py.File, path: Path, ragged: Sequence[str] = ()
) -> tuple[dict[str, h5py.Dataset], list[str]]:
    """Those that can be fields, by name, and the names of others. DataError where one leads out of
    the file, or is ragged but none of `ragged`, which are passed over.
    """
    arrays, others = {}, []
    for name, found in walk_links(file):
        group = name.rpartition("/")[0]
        if group and is_windows(file[group]):
            raise DataError(f"{path} keeps {group!r} as a series already. Register it as it is.")
        if group and is_packed(file[group]):
            raise DataError(
                f"{path} has the packed graphs {group!r}, which are as small as they can be."
                " Register it as it is."
            )
        if group and is_ragged(file[group]):
            if group in ragged:
                continue
            raise DataError(
                f"{path} has the ragged array {group!r}, which is not written anew. Keep the other"
                " arrays in a file of their own, or pad its samples to one length first (`stoker "
                f"data convert {path.name} --pad LENGTH`)."
            )
        if isinstance(found, str) or found.external is not None or found.is_virtual:
            raise DataError(
                f"{name!r} of {path} lies in another file, which is not followed for safety; copy"
                " the array into this one."
            )
        if unusable_because(found) is None:
            arrays[name] = found
        else:
            others.append(name)
    if not arrays:
        raise DataError(f"{path} has no numeric array with an axis of samples.")
    return arrays, others


def _write_windows(
    target: h5py.File, name: str, array: h5py.Dataset, overlap: Overlap, look: Look
) -> None:
    with tempfile.TemporaryFile(dir=Path(target.filename).parent) as steps:
        starts = _Stretches(array, overlap, steps, look).run()
        step = Field(tuple(array.shape[2:]), array.dtype)
        group = write_windows(target, name, steps, step, starts, array.shape[1])
        group.attrs.update(array.attrs)


def copy_array(target: h5py.File, name: str, array: h5py.Dataset, look: Look) -> None:
    """As one plain piece, however it was stored. `look`: at samples and the place of the first."""
    copy = target.create_dataset(name, array.shape, array.dtype)
    copy.attrs.update(array.attrs)
    at_once = max(1, PIECE_BYTES // row_bytes(array))
    for start in range(0, len(array), at_once):
        rows = array[start : start + at_once]
        look(start, rows)
        copy[start : start + at_once] = rows


def _summary(path: Path, out: Path, overlaps: dict[str, Overlap]) -> dict[str, Any]:
    with open_file(out) as file:
        series = {
            name: {
                "window_length": int(file[name].attrs[LENGTH]),
                "steps": int(file[name][SERIES].shape[0]),
                "samples": int(file[name][STARTS].shape[0]),
            }
            for name in overlaps
        }
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "bytes_before": sum(each.stat().st_size for each in listed(path)),
        "series": series,
    }


def main(arguments: list[str] | None = None) -> int:
    return converting_command("convert", "Windows to their series.", convert, arguments)


if __name__ == "__main__":
    sys.exit(main())
