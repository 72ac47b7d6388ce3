"""Molecules to packed graphs: SMILES and SDF, what is wrong with them, scaffolds, the sample."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from worker.trainer.errors import DataError
from worker.trainer.tools.bad_rows import Bad
from worker.trainer.tools.inspect import inspect
from worker.trainer.tools.molecules import convert as converting
from worker.trainer.tools.molecules import sample
from worker.trainer.tools.molecules.graphs import graph_of, parts_by_scaffold
from worker.trainer.tools.molecules.records import Wanted, chemistry

pytest.importorskip("rdkit")

TABLE = """name,smiles,logS
ethanol,CCO,-0.1
ring,C1CC,0.2
valence,C(C)(C)(C)(C)C,1
empty,,0.3
text,CCN,abc
phenol,c1ccccc1O,-0.5
short,CC
"""
BAD = {"invalid_molecules": 2, "empty_molecules": 1, "not_numbers": 1, "short_rows": 1}


def converted(path: Path, wanted: Wanted | None = None, *, skips: bool = False):
    out = path.with_suffix(".h5")
    return converting.convert(path, out, wanted or Wanted(), Bad(skips)), out


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def sdf_of(*smiles: str, **properties: float) -> str:
    from rdkit.Chem import MolToMolBlock

    said = "".join(f"> <{name}>\n{value}\n\n" for name, value in properties.items())
    blocks = (MolToMolBlock(chemistry().MolFromSmiles(one)) for one in smiles)
    return "".join(f"{block}{said}$$$$\n" for block in blocks)


def test_a_graph_has_the_atoms_and_bonds_of_the_molecule():
    graph = graph_of(chemistry().MolFromSmiles("C[N+](C)(C)CC(=O)[O-]"))
    elements, _, charge, hydrogens, *_ = graph["nodes"].T.tolist()
    assert elements == [6, 7, 6, 6, 6, 6, 8, 8]
    assert charge == [8, 9, 8, 8, 8, 8, 8, 7]
    assert hydrogens == [3, 0, 3, 3, 2, 0, 0, 0]
    assert sorted(map(sorted, graph["edges"].tolist())) == [
        [0, 1], [1, 2], [1, 3], [1, 4], [4, 5], [5, 6], [5, 7]
    ]  # fmt: skip
    assert sorted(graph["edge_values"][:, 0].tolist()) == [1, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize(("mark", "name"), [(",", "id (a;b;c;d)"), (";", "id"), ("\t", "id")])
def test_a_table_of_smiles_becomes_a_dataset(tmp_path, mark, name):
    text = f"{name},smiles,y\n1,CCO,1.5\n2,c1ccccc1,-2\n3,[Na+],0\n"
    path = written(tmp_path / "a.csv", text.replace(",", mark))
    made, out = converted(path, Wanted(targets=("y",)))
    assert (made["samples"], made["atoms"], made["bonds"]) == (3, {"total": 10, "most": 6}, 8)
    report = inspect(out)
    assert report["problems"] == report["warnings"] == []
    assert report["fields"]["molecules"]["edges"]["shape"] == [4]
    assert sorted(report["layout"]["groups"]) == ["scaffold", "scaffold_part"]
    with h5py.File(out) as file:
        assert file["targets"][:].tolist() == [1.5, -2.0, 0.0]
        assert file["molecules/node_offsets"][:].tolist() == [0, 3, 9, 10]


@pytest.mark.parametrize(
    ("rows", "where", "what"),
    [
        ([2], "line 2, column smiles", "'C1CC' is no valid SMILES."),
        ([3], "line 2, column smiles", "no valid SMILES (Explicit valence for atom # 0 C, 5"),
        ([4], "line 2, column smiles", "the molecule has no atoms."),
        ([1, 5], "line 3, column logS", "has to be a finite number, and 'abc' is none."),
        ([7], "line 2", "2 columns, fewer than the header has."),
    ],
)
def test_what_cannot_be_used_is_told_by_file_line_and_column(tmp_path, rows, where, what):
    lines = TABLE.splitlines()
    path = written(tmp_path / "a.csv", "\n".join([lines[0], *(lines[row] for row in rows)]))
    with pytest.raises(DataError) as caught:
        converted(path, Wanted(targets=("logS",)))
    assert caught.value.message.startswith(f"{path}, {where}: ")
    assert what in caught.value.message
    assert "or pass --on-bad skip" in caught.value.message
    assert not path.with_suffix(".h5").exists()


def test_several_targets_may_have_empty_cells(tmp_path):
    text = "smiles,a,b\nCCO,1.5,\nCCN,,2\nCC,NA,nan\nC,3,4\n"
    path, wanted = written(tmp_path / "a.csv", text), Wanted(targets=("a", "b"))
    with pytest.raises(DataError, match=r"a.csv, line 4.*: all of its 2 targets are missing\."):
        converted(path, wanted)
    made, out = converted(path, wanted, skips=True)
    assert (made["samples"], made["target"], made["missing_targets"]) == (3, "a, b", 2)
    with h5py.File(out) as file:
        np.testing.assert_array_equal(file["targets"], [[1.5, np.nan], [np.nan, 2], [3, 4]])
        assert file["targets"].attrs["feature_names"].tolist() == ["a", "b"]
    report = inspect(out)
    assert report["problems"] == []
    assert [one["code"] for one in report["warnings"]] == ["nonfinite_values"]


@pytest.mark.parametrize(
    ("text", "targets", "told"),
    [
        ("smiles,a,b\nCCO,1.5,x\n", ("a", "b"), "line 2, column b: the target has to be a finite"),
        ("smiles,a,b\nCCO,1.5,inf\n", ("a", "b"), "'inf' is none"),
        ("smiles,a\nCCO,\n", ("a",), "the target has to be a finite number, and there is none"),
        ("smiles,a\nCCO,1\n", ("a", "a"), "--target names a column twice: a, a. Name it once."),
        ("smiles,a\nCCO,1\n", ("a", "b"), "has no column 'b'; its columns are smiles, a."),
    ],
)
def test_targets_that_cannot_be_used_are_told(tmp_path, text, targets, told):
    with pytest.raises(DataError) as caught:
        converted(written(tmp_path / "a.csv", text), Wanted(targets=targets))
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("smiles,y\nCCO,1.5\nCCN,2,5\n", "line 3: 3 columns, and 2 have names. Name the others"),
        ("smiles,y\nCCO,1_000\n", "line 2, column y: the target has to be a finite number, and"),
        ("smiles,y,Y\nCCO,1,100\n", "has two columns of the name 'y'. Rename one."),
        ("smiles,SMILES,y\nCCO,CCN,1\n", "has two columns of the name 'smiles'. Rename one."),
    ],
)
def test_what_could_be_read_wrongly_is_refused(tmp_path, text, told):
    path = written(tmp_path / "a.csv", text)
    with pytest.raises(DataError) as caught:
        converted(path, Wanted(targets=("y",)))
    assert told in caught.value.message


def test_a_scaffold_has_its_number_in_every_file(tmp_path):
    """So a molecule stays in its part, by `split.method: groups`, when others are added."""
    numbers = []
    for more in ("", "c1ccoc1C\n"):
        path = written(tmp_path / "a.smi", f"CCO\nc1ccccc1O\nC1CCNCC1\nc1ccccc1\n{more}")
        with h5py.File(converted(path)[1]) as file:
            numbers.append(file["scaffold"][:].tolist())
    assert numbers[1][:4] == numbers[0]
    assert len(set(numbers[0])) == 3
    assert numbers[0][1] == numbers[0][3]


def test_or_it_is_skipped_and_counted(tmp_path):
    made, out = converted(written(tmp_path / "a.csv", TABLE), Wanted(targets=("logS",)), skips=True)
    assert (made["samples"], made["bad"], len(made["told"])) == (2, BAD, 5)
    with h5py.File(out) as file:
        assert file["targets"][:].tolist() == [np.float32(-0.1), -0.5]


def test_a_molecule_of_500_atoms_is_taken_for_a_mistake_unless_it_is_allowed(tmp_path):
    path = written(tmp_path / "a.smi", f"CCO one\n{'C' * 500} two\n\nCC three\n")
    with pytest.raises(DataError, match=r"line 2.*has 500 atoms, more than 256 \(--max-atoms"):
        converted(path)
    assert converted(path, skips=True)[0]["bad"] == {"large_molecules": 1}
    made, out = converted(path, Wanted(most_atoms=500))
    assert (made["samples"], made["atoms"]["most"]) == (3, 500)
    assert inspect(out)["problems"] == []


def test_an_sdf_that_was_cut_short_has_the_molecules_before(tmp_path):
    whole = sdf_of("CCO", "c1ccccc1", "CCN", SOL=-1.25)
    made, _ = converted(written(tmp_path / "a.sdf", whole), Wanted(targets=("SOL",)))
    assert (made["samples"], made["bad"]) == (3, {})
    path = written(tmp_path / "b.sdf", whole[: len(whole) - 60])
    with pytest.raises(DataError, match=r"molecule 3 from line \d+ on: the file ends in the mid"):
        converted(path, Wanted(targets=("SOL",)))
    made, out = converted(path, Wanted(targets=("SOL",)), skips=True)
    assert (made["samples"], made["bad"]) == (2, {"cut_short": 1})
    with h5py.File(out) as file:
        assert file["targets"][:].tolist() == [-1.25, -1.25]


def test_a_record_of_an_sdf_that_makes_no_sense_is_told(tmp_path):
    whole = sdf_of("CCO", "CCN", SOL=1.0)
    lines = whole.splitlines(keepends=True)
    lines[3] = lines[3].replace("  3  2", "  9  2", 1)
    path = written(tmp_path / "a.sdf", "".join(lines))
    with pytest.raises(DataError, match="molecule 1 from line 1 on: its atoms and bonds are not"):
        converted(path)
    assert converted(path, skips=True)[0]["samples"] == 1
    with pytest.raises(DataError, match=r"property LOGP: the target.*there is none"):
        converted(written(tmp_path / "b.sdf", whole), Wanted(targets=("LOGP",)))


@pytest.mark.parametrize(
    ("name", "text", "wanted", "told"),
    [
        ("a.csv", "id,mol\n1,C\n", Wanted(), "no column of SMILES; its columns are id, mol. Name"),
        ("a.csv", "id,smiles\n1,C\n", Wanted("smile"), "no column 'smile'.*Did you mean smiles?"),
        ("a.csv", "smiles\nC\n", Wanted(targets=("y",)), "has no column 'y'.*by --target"),
        ("a.smi", "C\n", Wanted(targets=("y",)), "a SMILES a line and no columns"),
        ("a.txt", "C\n", Wanted(), "is no file of molecules"),
        ("a.csv", "smiles\n", Wanted(), "has no molecule that can be used"),
        ("a.smi", "C\n", Wanted(most_atoms=70_000), "--max-atoms is 1 to 65,535, not 70,000"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, name, text, wanted, told):
    with pytest.raises(DataError, match=told):
        converted(written(tmp_path / name, text), wanted)


def test_a_scaffold_is_in_one_part_and_the_common_ones_are_trained_on():
    scaffolds = [*["a"] * 50, *["b"] * 30, *["c"] * 8, *"defghi", *["j"] * 6]
    parts = parts_by_scaffold(scaffolds)
    for name in set(scaffolds):
        assert (
            len({int(part) for part, one in zip(parts, scaffolds, strict=True) if one == name}) == 1
        )
    assert np.bincount(parts).tolist() == [80, 10, 10]
    assert set(parts[:80]) == {0}
    assert parts_by_scaffold(["a"] * 9 + ["b"]).tolist() == [0] * 9 + [1]


def test_the_sample_is_real_and_its_parts_share_no_scaffold(tmp_path, capsys):
    pytest.importorskip("datamol")
    assert sample.main([str(tmp_path / "molecules")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["nci.h5"]["samples"] + made["nci.h5"]["bad"]["invalid_molecules"] == 4_999
    assert made["solubility.h5"]["samples"] == 1_025 + 257
    with h5py.File(tmp_path / "molecules" / "solubility.h5") as file:
        part, scaffold = file["part"][:], file["scaffold"][:]
        assert np.bincount(part).tolist()[2] == 257
        assert set(part[1_025:]) == {2}
        assert not set(scaffold[part == 0]) & set(scaffold[part == 1])
        assert -12 < file["targets"][:].min() < file["targets"][:].max() < 2
