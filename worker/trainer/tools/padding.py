"""A file whose ragged arrays have one length: the other arrays are copied as they are.

`python -m worker.trainer.tools.padding IN.h5 OUT.h5 --pad LENGTH [--array NAME]` prints JSON.
"""

import argparse
import sys
from functools import partial as bound
from pathlib import Path
from typing import Any

import h5py

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import open_file
from worker.trainer.data.formats.ragged_files import find_ragged, is_ragged, pad_ragged
from worker.trainer.data.formats.window_files import PIECE_BYTES
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer, require_new
from worker.trainer.tools.bad_rows import NotFinite
from worker.trainer.tools.content import row_bytes
from worker.trainer.tools.convert import arrays_of, copy_array


def pad(
    path: Path, out: Path, length: int, array: str | None, *, force: bool = True
) -> dict[str, Any]:
    """Write `out`: shorter samples are filled with zeros behind their end, of longer ones the first
    values are kept. `array`: which ragged array, where there are several. DataError where there is
    none, or `out` is there and must not be replaced (`force`).
    """
    seen = NotFinite()
    with open_file(path) as file:
        ragged: list[str] = []
        file.visititems(lambda name, node: ragged.append(name) if is_ragged(node) else None)
        chosen = [name for name in ragged if array in (None, name)]
        if not chosen:
            wanted = "no ragged array" if array is None else f"no ragged array {array!r}"
            raise DataError(f"{path} has {wanted}; it has {', '.join(ragged) or 'none at all'}.")
        if kept := sorted(set(ragged) - set(chosen)):
            raise DataError(
                f"{path} has other ragged arrays too ({', '.join(kept)}), which are not written "
                "anew. Leave out --array, so that all are padded."
            )
        lengths = {name: one.lengths for name, one in find_ragged(path, chosen).items()}
        arrays, left_out = arrays_of(file, path, chosen)
        require_new(out, force=force)
        with whole_file(out) as partial, h5py.File(partial, "w") as target:
            target.attrs.update(file.attrs)
            for name, one in arrays.items():
                copy_array(target, name, one, bound(seen.look, name))
            for name in chosen:
                pad_ragged(file, name, name, length, into=target)
                _look_over(seen, name, target[name])
            shapes = {name: list(target[name].shape) for name in (*arrays, *chosen)}
    cut = sum(int((one > length).sum()) for one in lengths.values())
    made = {"path": str(out), "bytes": out.stat().st_size, "arrays": shapes, "left_out": left_out}
    longer = [f"{cut:,} samples are longer and were cut."] if cut else []
    return made | {"told": [*longer, *seen.sentences()]}


def _look_over(seen: NotFinite, name: str, array: h5py.Dataset) -> None:
    at_once = max(1, PIECE_BYTES // row_bytes(array))
    for start in range(0, len(array), at_once):
        seen.look(name, start, array[start : start + at_once])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="padding", description="Ragged arrays to one length.")
    parser.add_argument("path", type=Path, metavar="IN.h5")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    parser.add_argument("--pad", type=int, required=True, metavar="LENGTH")
    parser.add_argument("--array")
    parser.add_argument(
        "--new", dest="force", action="store_false", help="refuse an OUT that is there"
    )
    options = parser.parse_args(arguments)
    return answer(
        lambda: pad(options.path, options.out, options.pad, options.array, force=options.force),
        f"{options.path} could not be written as {options.out}",
    )


if __name__ == "__main__":
    sys.exit(main())
