"""The comparison of the recipe `molecule` with PyTorch Geometric's GINE."""

import pytest

from benchmarks.steps import spec_of
from benchmarks.workloads import molecule_peers


@pytest.mark.parametrize("name", molecule_peers.EPOCHS)
def test_the_recipe_trains_at_the_budget_of_the_peer(name: str) -> None:
    spec = spec_of(molecule_peers._request(name, 1))
    assert spec.training.epochs == molecule_peers.EPOCHS[name]
    assert spec.training.seed == 1
    assert spec.optimizer.lr == molecule_peers.RATE
    assert spec.recipe.widths == {"hidden_size": molecule_peers.WIDTH}


def test_without_the_peer_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(molecule_peers, "find_spec", lambda name: None)
    (figure,) = molecule_peers.measure()
    assert "pip install 'stoker[molecules,peers]'" in figure.note
