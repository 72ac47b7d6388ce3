"""The benchmark of loading: every arm brings each sample once, and what does not is noticed."""

import pytest

from benchmarks.loading import arms, arrow, figures, rounds, windows
from benchmarks.loading.files import write
from benchmarks.loading.stoker import stoker
from tests.trainer_data.factories import children


@pytest.mark.parametrize("shuffled", [False, True])
def test_every_arm_brings_each_sample_once(tmp_path, shuffled, monkeypatch):
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    monkeypatch.setattr(figures, "WORKERS", (0, 1))
    monkeypatch.setattr(figures, "OWN_WORKERS", (0, 1))
    file = write(tmp_path, "contiguous", samples=300, features=2)
    before = children()
    found = {figure.name: figure for figure in figures._contiguous(file, shuffled=shuffled)}
    assert len([name for name in found if "DataLoader" in name and "over" not in name]) == 8
    assert len([name for name in found if "stoker, dataloader" in name]) == 3
    assert all(figure.value > 0 for figure in found.values())
    assert children() <= before


@pytest.mark.parametrize("layout", figures.PACKINGS)
def test_packed_data_is_the_same(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    assert figures._compressed(tmp_path, layout, (200, 2))


@pytest.mark.parametrize("brought", [[1, 2], [0, 0, 2]])
def test_an_arm_that_loses_or_repeats_samples_is_no_figure(tmp_path, brought):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    whole = stoker(file, "resident", "none")

    def epoch(number):
        batches = list(whole.epoch(number))
        return (batches[place] for place in brought)

    with pytest.raises(RuntimeError, match="lazy did not bring"):
        rounds.epoch_of(file, arms.Arm("lazy", epoch), 0)
    whole.close()


def test_a_series_brings_what_its_windows_do_in_a_hundredth_of_the_room(monkeypatch):
    for module, name, value in (
        (rounds, "ROUNDS", 1), (windows, "ROUNDS", 1), (windows, "SAMPLES", 600),
        (windows, "FEATURES", 16),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    found = {figure.name: figure for figure in windows.measure()}
    assert found["windows: bytes of the windows over those of the series"].holds
    assert found["windows: first batch, with statistics: windows over series"].n == 1


def test_arrow_folders_bring_each_sample_once(monkeypatch):
    for module, name, value in (
        (rounds, "ROUNDS", 1), (arrow, "SAMPLES", 300), (arrow, "FILES", 3),
        (arrow, "WORKERS", (0,)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    found = {figure.name: figure for figure in arrow.measure()}
    assert len([name for name in found if "pyarrow tables" in name and "over" not in name]) == 4
    assert len([name for name in found if "DataLoader, items" in name and "over" not in name]) == 3
    assert all(figure.value > 0 for figure in found.values())
