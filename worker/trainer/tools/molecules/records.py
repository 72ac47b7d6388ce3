"""Molecules of a file, one by one: SMILES in a table or a line each, and SDF.

What is wrong with one is told by file, line and column; where such are skipped, the file is read to
its end.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from app.spec.suffixes import CSV
from app.suggest import closest, did_you_mean
from worker.trainer.errors import DataError
from worker.trainer.tools.bad_rows import Bad
from worker.trainer.tools.rows.form import PLAIN
from worker.trainer.tools.rows.head import HEAD_ROWS, misfit, separator_of
from worker.trainer.tools.rows.quotes import CsvRows, require_one_line

LINES, SDF = (".smi", ".smiles"), (".sdf", ".sd")
SMILES_NAMES = ("smiles", "canonical_smiles", "isomeric_smiles", "structure")
END_OF_RECORD = "$$$$"
MOST = 3.4e38  # that a number of 32 bits can be
MISSING = ("", "na", "n/a", "nan", "null", "none")
SHOWN = 80  # characters of what a file has
LEFT_OUT = "such molecules are left out and counted"


class KnownMolecule(NamedTuple):
    mol: Any
    """As RDKit has it, without hydrogens that stand for themselves."""
    targets: tuple[float, ...]
    """NaN where one is not known."""


@dataclass(frozen=True)
class Wanted:
    """What is read of each molecule; names are columns of a table, and properties in SDF."""

    smiles: str | None = None
    """None: a table has a column of a usual name."""
    targets: tuple[str, ...] = ()
    most_atoms: int = 256
    """A larger one is taken for a mistake."""


@cache
def chemistry() -> Any:
    """RDKit's `Chem`, which prints nothing of its own. DataError where it is not installed."""
    try:
        from rdkit import Chem, rdBase  # an extra, for this alone
    except ImportError:
        raise DataError(
            "Molecules are read by RDKit, which is not installed; run pip install"
            " 'stoker[molecules]'."
        ) from None
    rdBase.DisableLog("rdApp.*")
    return Chem


def read_molecules(path: Path, wanted: Wanted, bad: Bad) -> Iterator[KnownMolecule]:
    """Those that can be used, in the order of the file. DataError."""
    kind = path.suffix.lower()
    readers = {**dict.fromkeys(CSV, _of_table), **dict.fromkeys(LINES, _of_lines)}
    read = _of_sdf if kind in SDF else readers.get(kind)
    if read is None:
        raise DataError(
            f"{path} is no file of molecules: .sdf, .smi (a SMILES a line), .csv and .tsv (a column"
            " of SMILES) can be read."
        )
    chemistry()
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        yield from _usable(read(path, file, wanted, bad), wanted, bad)


class _Found(NamedTuple):
    """A record, before anybody has looked at its atoms."""

    at: str
    """File, line and column, for people."""
    mol: Any
    why: str
    """That there is none."""
    targets: tuple[str | None, ...]
    """Texts, in the order in which they are wanted."""
    targets_at: tuple[str, ...]


def _usable(found: Iterator[_Found], wanted: Wanted, bad: Bad) -> Iterator[KnownMolecule]:
    for one in found:
        atoms = 0 if one.mol is None else one.mol.GetNumAtoms()
        if one.mol is None:
            bad.add("invalid_molecules", f"{one.at}: {one.why}.", LEFT_OUT)
        elif not atoms:
            bad.add("empty_molecules", f"{one.at}: the molecule has no atoms.", LEFT_OUT)
        elif atoms > wanted.most_atoms:
            what = f"{atoms:,} atoms, more than {wanted.most_atoms:,} (--max-atoms allows more)."
            bad.add("large_molecules", f"{one.at}: the molecule has {what}", LEFT_OUT)
        elif sentence := _unusable_targets(one):
            bad.add("not_numbers", sentence, LEFT_OUT)
        else:
            yield KnownMolecule(one.mol, tuple(map(_number, one.targets)))


def _unusable_targets(found: _Found) -> str:
    """Says which target is no number, or that none is known; empty if they can be used. One of
    several may be missing.
    """
    for text, at in zip(found.targets, found.targets_at, strict=True):
        if _is_missing(text):
            continue
        if math.isnan(_number(text)):
            shown = (text or "")[:SHOWN]
            return f"{at}: the target has to be a finite number, and {shown!r} is none."
    if not found.targets or not all(map(_is_missing, found.targets)):
        return ""
    if len(found.targets) == 1:
        return f"{found.targets_at[0]}: the target has to be a finite number, and there is none."
    return f"{found.at}: all of its {len(found.targets)} targets are missing."


def _is_missing(text: str | None) -> bool:
    return text is None or text.lower() in MISSING


def _number(text: str | None) -> float:
    """NaN if it is none, or too large for 32 bits."""
    number = PLAIN.number(text or "")
    return number if abs(number) <= MOST else math.nan


def _of_table(path: Path, file: TextIO, wanted: Wanted, bad: Bad) -> Iterator[_Found]:
    first = list(islice(file, HEAD_ROWS))
    mark = separator_of([line for line in first if line.strip()])
    rows = CsvRows(path, chain(first, file), mark)
    names = next(rows, [])
    smiles = _column(path, names, wanted.smiles, SMILES_NAMES, "--smiles")
    targets = [_column(path, names, name, (), "--target") for name in wanted.targets]
    for row in rows:
        if not row:
            continue
        if (misfitting := misfit(row, len(names) - 1, len(names))) is not None:
            rows.require_one_line()
            kind, what = misfitting
            bad.add(kind, f"{rows.at}: {what}", LEFT_OUT)
            continue
        values = tuple(row[target].strip() for target in targets)
        # RDKit reads no further than the first line, and calls the others a name.
        require_one_line(rows.at, "".join((row[smiles].strip(), *values)))
        mol, why = _of_smiles(row[smiles])
        where = tuple(f"{rows.at}, column {name}" for name in wanted.targets)
        yield _Found(f"{rows.at}, column {names[smiles]}", mol, why, values, where)


def _column(
    path: Path, names: list[str], name: str | None, usual: tuple[str, ...], option: str
) -> int:
    """The place of a column. DataError with those there are."""
    low = [one.strip().lower() for one in names]
    for wanted in usual if name is None else (name.strip().lower(),):
        if low.count(wanted) > 1:
            raise DataError(f"{path} has two columns of the name {wanted!r}. Rename one.")
        if wanted in low:
            return low.index(wanted)
    what = f"no column {name!r}" if name is not None else "no column of SMILES"
    meant = did_you_mean(closest(name, names)) if name is not None else ""
    there = ", ".join(names) or "none"
    raise DataError(f"{path} has {what}; its columns are {there}. Name one by {option}.{meant}")


def _of_lines(path: Path, file: TextIO, wanted: Wanted, bad: Bad) -> Iterator[_Found]:
    if wanted.targets:
        raise DataError(
            f"{path} has a SMILES a line and no columns, so no {wanted.targets[0]!r} either. Write"
            " a CSV file with a column for it."
        )
    for number, line in enumerate(file, 1):
        words = line.split()
        if words and not (number == 1 and words[0].lower() in SMILES_NAMES):
            yield _Found(f"{path}, line {number}, column SMILES", *_of_smiles(words[0]), (), ())


def _of_smiles(text: str) -> tuple[Any, str]:
    """The molecule, or why there is none."""
    chem, text = chemistry(), text.strip()
    mol = chem.MolFromSmiles(text)
    if mol is not None:
        return mol, ""
    problems = _problems(chem.MolFromSmiles(text, sanitize=False))
    return None, f"{text[:SHOWN]!r} is no valid SMILES" + (f" ({problems})" if problems else "")


def _problems(mol: Any) -> str:
    """What is wrong with its chemistry; empty where it cannot even be read."""
    if mol is None:
        return ""
    found = chemistry().DetectChemistryProblems(mol)
    return str(found[0].Message()).rstrip(".") if found else ""


def _of_sdf(path: Path, file: TextIO, wanted: Wanted, bad: Bad) -> Iterator[_Found]:
    chem = chemistry()
    for number, (begin, record) in enumerate(_records(file), 1):
        at = f"{path}, molecule {number} from line {begin} on"
        if record is None:
            sentence = f"{at}: the file ends in the middle of it, with no {END_OF_RECORD}."
            bad.add("cut_short", sentence, "what was cut is left out and counted")
            return
        supplier = chem.SDMolSupplier()
        supplier.SetData(record)
        mol = supplier[0] if len(supplier) else None
        targets = tuple(
            mol.GetProp(name).strip() if mol is not None and mol.HasProp(name) else None
            for name in wanted.targets
        )
        problems = (
            "" if mol is not None else _problems(chem.MolFromMolBlock(record, sanitize=False))
        )
        why = problems or "its atoms and bonds are not what its first lines say"
        where = tuple(f"{at}, property {name}" for name in wanted.targets)
        yield _Found(at, mol, why, targets, where)


def _records(file: TextIO) -> Iterator[tuple[int, str | None]]:
    """The line that each begins with, and its text; None of one that does not end."""
    lines: list[str] = []
    begin = 1
    for number, line in enumerate(file, 1):
        lines.append(line)
        if line.startswith(END_OF_RECORD):
            yield begin, "".join(lines)
            lines, begin = [], number + 1
    if any(line.strip() for line in chain(lines)):
        yield begin, None
