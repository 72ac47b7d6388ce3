"""The benchmark of loading: every arm brings each sample once, and what does not is noticed."""

import pytest

from benchmarks.effort import Effort
from benchmarks.loading import arms, figures, windows
from benchmarks.loading.files import write
from benchmarks.loading.stoker import stoker
from tests.trainer_data.factories import children

ONCE = Effort(most_rounds=1, share=1.0, most_variants=2)


@pytest.mark.parametrize("shuffled", [False, True])
def test_every_arm_brings_each_sample_once(tmp_path, shuffled):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    before = children()
    found = {figure.name: figure for figure in figures._contiguous(file, ONCE, shuffled=shuffled)}
    assert len([name for name in found if "DataLoader" in name and "over" not in name]) == 4
    assert len([name for name in found if "stoker, dataloader" in name]) == 3
    assert all(figure.value > 0 for figure in found.values())
    rates = [figure for figure in found.values() if figure.unit]
    assert all(value > 0 for figure in rates for value in figure.also.values())
    assert all(figure.also["of the probe"] for figure in rates)
    assert children() <= before


@pytest.mark.parametrize("layout", figures.PACKINGS)
def test_packed_data_is_the_same(tmp_path, layout):
    file = write(tmp_path, layout, samples=200, features=2)
    assert figures._compressed(file, layout, ONCE)


@pytest.mark.parametrize("brought", [[1, 2], [0, 0, 2]])
def test_an_arm_that_loses_or_repeats_samples_is_no_figure(tmp_path, brought):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    whole = stoker(file, "resident", "none")

    def epoch(number):
        batches = list(whole.epoch(number))
        return (batches[place] for place in brought)

    with pytest.raises(RuntimeError, match="lazy did not bring"):
        arms.Arm("lazy", epoch).run(file, 0)
    whole.close()


def test_a_series_brings_what_its_windows_do_in_a_hundredth_of_the_room(monkeypatch):
    monkeypatch.setattr(windows, "SAMPLES", 600)
    monkeypatch.setattr(windows, "FEATURES", 16)
    found = {figure.name: figure for figure in windows.measure(ONCE)}
    assert found["windows: bytes of the windows over those of the series"].holds
    assert found["windows: first batch, with statistics: windows over series"].n == 1
