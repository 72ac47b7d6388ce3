"""Packed graphs by the command line: the page's own lines, inspected, registered and trained."""

import json

import pytest

from tests.cli.data.test_data import STREAM, trained
from tests.cli.test_readme import ROOT
from tests.pages import blocks


@pytest.mark.minutes
def test_packed_graphs_are_told_and_train(cli, up, monkeypatch):
    _, script = blocks("python", (ROOT / "docs" / "guide" / "data.md").read_text())
    monkeypatch.chdir(up / "data")
    exec(script, {})  # noqa: S102  the page's own lines
    looked = cli("data", "inspect", "rings.h5")
    assert looked.code == 0
    assert "graphs of 6 to 24 nodes × 3 and 6 to 24 edges: 14.0 and 14.0 on average" in looked.out
    assert cli("data", "register", "rings", "rings.h5").code == 0
    spec = up / "rings.yaml"
    spec.write_text(
        "recipe: {kind: molecule, task: regression, hidden_size: 8, num_layers: 1}\n"
        "data: {dataset: rings, inputs: [rings], standardize: {inputs: false}}\n"
        "training: {epochs: 1, batch_size: 32}\n"
    )
    loader = json.dumps(STREAM)
    assert trained(cli, spec, "--set", f"data.loader={loader}")["val_mae"] > 0
    refused = cli("submit", str(spec), "--set", "recipe={kind: sequence}")
    assert refused.code == 5
    assert "'rings' is packed: its samples are graphs" in refused.out + refused.err


@pytest.mark.minutes
def test_molecules_with_missing_labels_train_by_three_lines(cli, up):
    pytest.importorskip("rdkit")
    rows = [f"{'C' * (n % 7 + 1)}O,{n % 7 + 1},{n % 7 * 0.5 if n % 3 else ''}" for n in range(60)]
    (up / "data" / "assay.csv").write_text("\n".join(["smiles,carbons,half", *rows]) + "\n")
    made = cli(
        "data", "convert", str(up / "data" / "assay.csv"), str(up / "data" / "assay.h5"),
        "--smiles", "smiles", "--target", "carbons", "--target", "half",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert "Target: carbons, half. 20 labels are missing." in made.out
    looked = cli("data", "inspect", str(up / "data" / "assay.h5"))
    assert "NaN in targets may stay for a recipe that leaves missing labels out" in (
        " ".join(looked.err.split())
    )
    assert cli("data", "register", "assay", "assay.h5").code == 0
    spec = up / "assay.yaml"
    spec.write_text(
        "recipe: {kind: molecule, task: regression, hidden_size: 8, num_layers: 1}\n"
        "data: {dataset: assay}\n"
        "training: {epochs: 1, batch_size: 16}\n"
    )
    scores = trained(cli, spec)
    assert scores["val_mae"] == pytest.approx((scores["val_mae_0"] + scores["val_mae_1"]) / 2)
    refused = cli("plan", str(spec), "--set", "recipe={kind: sequence}")
    assert refused.code == 5
