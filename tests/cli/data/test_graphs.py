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
