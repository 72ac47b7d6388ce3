"""Molecules of a file, one by one: SMILES in a table or a line each, and SDF.

What is wrong with one is told by file, line and column; where such are skipped, the file is read to
its end.
"""

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
SHOWN = 80  # characters of what a file has
LEFT_OUT = "such molecules are left out and counted"


class KnownMolecule(NamedTuple):
    mol: Any
    """As RDKit has it, without hydrogens that stand for themselves."""
    target: float | None


@dataclass(frozen=True)
class Wanted:
    """What is read of each molecule; names are columns of a table, and properties in SDF."""

    smiles: str | None = None
    """None: a table has a column of a usual name."""
    target: str | None = None
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
    target: str | None
    target_at: str


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
        elif wanted.target is None:
            yield KnownMolecule(one.mol, None)
        elif (value := _number(one.target)) is None:
            shown = "there is none" if one.target is None else f"{one.target[:SHOWN]!r} is none"
            sentence = f"{one.target_at}: the target has to be a finite number, and {shown}."
            bad.add("not_numbers", sentence, LEFT_OUT)
        else:
            yield KnownMolecule(one.mol, value)


def _number(text: str | None) -> float | None:
    number = PLAIN.number(text or "")
    return number if abs(number) <= MOST else None  # NaN neither


def _of_table(path: Path, file: TextIO, wanted: Wanted, bad: Bad) -> Iterator[_Found]:
    first = list(islice(file, HEAD_ROWS))
    mark = separator_of([line for line in first if line.strip()])
    rows = CsvRows(path, chain(first, file), mark)
    names = next(rows, [])
    smiles = _column(path, names, wanted.smiles, SMILES_NAMES, "--smiles")
    target = None
    if wanted.target is not None:
        target = _column(path, names, wanted.target, (), "--target")
    for row in rows:
        if not row:
            continue
        if (misfitting := misfit(row, len(names) - 1, len(names))) is not None:
            rows.require_one_line()
            kind, what = misfitting
            bad.add(kind, f"{rows.at}: {what}", LEFT_OUT)
            continue
        value = None if target is None else row[target].strip()
        # RDKit reads no further than the first line, and calls the others a name.
        require_one_line(rows.at, f"{row[smiles].strip()}{value or ''}")
        mol, why = _of_smiles(row[smiles])
        where = f"{rows.at}, column {wanted.target}"
        yield _Found(f"{rows.at}, column {names[smiles]}", mol, why, value, where)


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
    if wanted.target is not None:
        raise DataError(
            f"{path} has a SMILES a line and no columns, so no {wanted.target!r} either. Write a"
            " CSV file with a column for it."
        )
    for number, line in enumerate(file, 1):
        words = line.split()
        if words and not (number == 1 and words[0].lower() in SMILES_NAMES):
            yield _Found(f"{path}, line {number}, column SMILES", *_of_smiles(words[0]), None, "")


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
        target = None
        if mol is not None and wanted.target is not None and mol.HasProp(wanted.target):
            target = mol.GetProp(wanted.target).strip()
        problems = (
            "" if mol is not None else _problems(chem.MolFromMolBlock(record, sanitize=False))
        )
        why = problems or "its atoms and bonds are not what its first lines say"
        yield _Found(at, mol, why, target, f"{at}, property {wanted.target}")


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
