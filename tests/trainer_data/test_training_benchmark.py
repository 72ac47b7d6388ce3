"""The benchmark of training: the same model with every loader, each sample once an epoch."""

import pytest

from benchmarks.confidence import lower_bound
from benchmarks.effort import Effort
from benchmarks.loading.arms import Arm
from benchmarks.loading.files import write
from benchmarks.training import figures
from benchmarks.training.models import MODELS, build
from tests.trainer_data.factories import children

TWICE = Effort(most_rounds=2, share=1.0, most_variants=2, own_processes=False)


@pytest.mark.parametrize("name", MODELS)
def test_every_loader_feeds_the_same_training(tmp_path, monkeypatch, name):
    monkeypatch.setattr(figures, "ROUNDS", 2)
    file = write(tmp_path, "contiguous", samples=300, features=2)
    before = children()
    found = {figure.name: figure for figure in figures._of_model(name, file, TWICE)}
    rates = [figure for figure in found.values() if figure.unit == "samples/s"]
    assert len(rates) == 11
    assert all(figure.value > 0 for figure in rates)
    assert all(0 < figure.also["% waiting for batches"] < 100 for figure in rates)
    assert [name for name in found if name.endswith("lower bound")]
    assert children() <= before


def test_the_lower_bound_is_students():
    """Mean 1.1, deviation 0.1414, and t of one degree of freedom: 1.1 - 6.314 * 0.1."""
    assert lower_bound([1.0, 1.2]) == pytest.approx(0.4686)


def test_an_epoch_with_samples_missing_is_no_figure(tmp_path):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    whole = figures.ready(file)
    lazy = Arm("lazy", lambda number: iter(list(whole.epoch(number))[1:]))
    with pytest.raises(RuntimeError, match="lazy brought 172 samples instead of 300"):
        figures.epoch_of(file, lazy, build("MLP", 2), 0)
