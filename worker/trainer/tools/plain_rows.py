"""Writes a table whose rows are samples by themselves: features and a number or a class of each.

`python -m worker.trainer.tools.plain_rows IN OUT.h5 --target COLUMN` prints one JSON document.
`features` is (rows, columns), of all columns of numbers but the target. `targets` is (rows,): the
target's numbers, or with --classes the number of each row's class, whose names the file has.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_class_names, write_roles
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer, require_new
from worker.trainer.tools.bad_rows import Bad
from worker.trainer.tools.classes import Classes, told
from worker.trainer.tools.rows.form import add_form, form_of
from worker.trainer.tools.tables import Table, column_of, open_table, usable_rows, with_label

PIECE_ROWS = 2**16


def write_rows(
    table: Table, out: Path, target: str, bad: Bad, *, classes: bool, force: bool = True
) -> dict[str, Any]:
    """Writes `out`, and says what it holds. `classes`: the target's values are classes; `force`:
    whether `out` may be replaced. DataError where no row can be used.
    """
    if classes:
        table, column = with_label(table, target), None
    else:
        column = column_of(table, target)
    features = [name for name in table.columns if classes or name != target]
    if not features:
        raise DataError(
            f"Beside {target!r} {table.path} has no column of numbers, so there is nothing to"
            " forecast it by."
        )
    require_new(out, force=force)
    with (
        whole_file(out) as partial,
        tempfile.TemporaryFile(dir=out.parent) as rows,
        h5py.File(partial, "w") as file,
    ):
        found = Classes(target)
        targets = _copied(table, rows, column, found, bad)
        if not len(targets):
            raise DataError(f"{table.path} has no row that can be used{bad.left_out()}.")
        names = None
        if classes:
            targets, names = found.numbered(targets)
        require_new(out, force=force)
        _write_features(file, rows, (len(targets), len(features)))
        file["targets"] = targets
        if names is not None:
            write_class_names(file["targets"], names)
        file.attrs.update({"feature_names": features, "target_name": target})
        write_roles(file, ["features"], ["targets"])
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "samples": len(targets),
        "features": features,
        "target": target,
        "class_names": names,
        "classes": None if names is None else told(names),
        "left_out": list(table.left_out),
        "separated_by": table.separated_by,
        "bad": dict(bad.counts),
        "told": bad.told,
    }


def _copied(
    table: Table, out: IO[bytes], column: int | None, classes: Classes, bad: Bad
) -> NDArray[Any]:
    """Writes the features of all files' usable rows, and returns their targets: the column of this
    number, or labels as `classes` numbers them.
    """
    targets: list[NDArray[Any]] = [np.zeros(0, np.float32 if column is not None else np.int64)]
    for path in table.files:
        before = 0
        for piece in table.pieces(path):
            usable = usable_rows(table, path, piece, before, bad)
            before += len(piece.numbers)
            numbers = piece.numbers[usable]
            if piece.labels is not None:
                targets.append(classes.add(piece.labels[usable]))
            elif column is not None:
                targets.append(numbers[:, column].copy())
                numbers = np.delete(numbers, column, axis=1)
            out.write(np.ascontiguousarray(numbers).tobytes())
    return np.concatenate(targets)


def _write_features(file: h5py.File, rows: IO[bytes], shape: tuple[int, int]) -> None:
    features = file.create_dataset("features", shape, np.float32)
    rows.seek(0)
    for start in range(0, shape[0], PIECE_ROWS):
        count = min(PIECE_ROWS, shape[0] - start)
        piece = np.frombuffer(rows.read(count * shape[1] * 4), np.float32)
        features[start : start + count] = piece.reshape(count, shape[1])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="rows", description="Rows that are samples.")
    parser.add_argument("path", type=Path, metavar="IN")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    parser.add_argument("--target", required=True)
    parser.add_argument("--classes", action="store_true")
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop")
    parser.add_argument(
        "--new", dest="force", action="store_false", help="refuse an OUT that is there"
    )
    add_form(parser)
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        form = replace(form_of(options), has_time=False)
        table, bad = open_table(options.path, None, form), Bad(skips=options.on_bad == "skip")
        return write_rows(
            table, options.out, options.target, bad, classes=options.classes, force=options.force
        )

    return answer(work, f"{options.path} could not be written as {options.out}")


if __name__ == "__main__":
    sys.exit(main())
