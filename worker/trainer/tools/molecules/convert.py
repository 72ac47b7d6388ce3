"""Writes molecules as packed graphs: what `stoker data convert` does to SMILES and SDF.

`python -m worker.trainer.tools.molecules.convert IN OUT.h5 [--target NAME]…` prints one JSON
document. OUT has the graphs as `molecules`; the number that is learned as `targets`, or a row of
several, with NaN for one that is missing; the number of each molecule's scaffold, and the part that
it is in by that, as `scaffold` and `scaffold_part`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_roles
from worker.trainer.data.formats.packed_files import EDGES, NODES, write_packed
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer, require_new
from worker.trainer.tools.bad_rows import Bad
from worker.trainer.tools.molecules.graphs import (
    ATOM_FEATURES,
    BOND_FEATURES,
    TEST,
    TRAINING,
    VALIDATION,
    graph_of,
    parts_by_scaffold,
    scaffold_of,
)
from worker.trainer.tools.molecules.records import KnownMolecule, Wanted, read_molecules

MOLECULES, TARGETS, SCAFFOLD, SCAFFOLD_PART = "molecules", "targets", "scaffold", "scaffold_part"
# Numbers of atoms are kept in two bytes.
MOST_ATOMS = 65_535


def convert(
    path: Path, out: Path, wanted: Wanted, bad: Bad, *, force: bool = True
) -> dict[str, Any]:
    """Write `out`, which is replaced where that is allowed (`force`); says what it holds, and what
    was left out. Raises DataError.
    """
    if not 1 <= wanted.most_atoms <= MOST_ATOMS:
        raise DataError(f"--max-atoms is 1 to {MOST_ATOMS:,}, not {wanted.most_atoms:,}.")
    if len(set(wanted.targets)) < len(wanted.targets):
        raise DataError(
            f"--target names a column twice: {', '.join(wanted.targets)}. Name it once."
        )
    found = read_molecules(path, wanted, bad)
    first = next(found, None)  # what is wrong with the columns is told before all else
    require_new(out, force=force)
    molecules = [] if first is None else [first, *found]
    if not molecules:
        raise DataError(f"{path} has no molecule that can be used{bad.left_out()}.")
    require_new(out, force=force)
    return write(out, molecules, wanted.targets) | {"bad": dict(bad.counts), "told": bad.told}


def write(
    out: Path,
    molecules: Sequence[KnownMolecule],
    targets: Sequence[str],
    more: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, Any]:
    """Write the file as a whole or not at all, with `more` arrays; says what it holds."""
    graphs = [graph_of(one.mol) for one in molecules]
    scaffolds = [scaffold_of(one.mol) for one in molecules]
    parts = parts_by_scaffold(scaffolds)
    with whole_file(out) as partial, h5py.File(partial, "w") as file:
        group = write_packed(file, MOLECULES, graphs)
        group.attrs["node_features"], group.attrs["edge_features"] = ATOM_FEATURES, BOND_FEATURES
        labels = np.array([one.targets for one in molecules], np.float32)
        if targets:
            # One number a molecule has no axis of its own.
            file[TARGETS] = labels if len(targets) > 1 else labels[:, 0]
            if len(targets) > 1:
                file[TARGETS].attrs["feature_names"] = list(targets)
            else:
                file.attrs["target_name"] = targets[0]
            write_roles(file, [MOLECULES], [TARGETS])
        numbers = [_number_of(scaffold) for scaffold in scaffolds]
        file[SCAFFOLD], file[SCAFFOLD_PART] = np.array(numbers, np.int64), parts
        for name, array in (more or {}).items():
            file[name] = array
    atoms = [len(graph[NODES]) for graph in graphs]
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "samples": len(molecules),
        "atoms": {"total": sum(atoms), "most": max(atoms)},
        "bonds": sum(len(graph[EDGES]) for graph in graphs),
        "scaffolds": len(set(scaffolds)),
        "parts": {
            name: int((parts == part).sum())
            for name, part in (("training", TRAINING), ("validation", VALIDATION), ("test", TEST))
        },
        "target": ", ".join(targets) or None,
        "missing_targets": int(np.isnan(labels).sum()),
    }


def _number_of(scaffold: str) -> int:
    """The same in every file, so that a part by its hash is too; 64 bits, as no two will share."""
    return int.from_bytes(sha256(scaffold.encode()).digest()[:8], "little", signed=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="convert", description="Molecules to packed graphs.")
    parser.add_argument("path", type=Path, metavar="IN")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    parser.add_argument("--smiles", help="the column of a table")
    parser.add_argument(
        "--target", action="append", default=[], help="a column of a table, a property in SDF"
    )
    parser.add_argument("--max-atoms", type=int, default=Wanted.most_atoms)
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop")
    parser.add_argument(
        "--new", dest="force", action="store_false", help="refuse an OUT that is there"
    )
    options = parser.parse_args(arguments)
    wanted = Wanted(options.smiles, tuple(options.target), options.max_atoms)
    bad = Bad(skips=options.on_bad == "skip")
    failed = f"{options.path} could not be written as {options.out}"
    path, out, force = options.path, options.out, options.force
    return answer(lambda: convert(path, out, wanted, bad, force=force), failed)


if __name__ == "__main__":
    sys.exit(main())
