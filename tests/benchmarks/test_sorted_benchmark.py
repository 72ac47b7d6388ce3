"""The benchmark on sorted data: the file is sorted, and every way of shuffling trains on it."""

import h5py
import numpy as np
import pytest

from benchmarks.effort import Effort
from benchmarks.training import sorted_data
from worker.trainer.tools.content import describe_values

ONCE = Effort(most_rounds=1, share=1.0, most_variants=2, own_processes=False)


def made_up(samples):
    random = np.random.default_rng(7)
    shapes = {"features": (samples, 360, 2), "targets": (samples, 36)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(sorted_data, "weather", lambda folder: (made_up(300), made_up(40)))
    monkeypatch.setattr(sorted_data, "EPOCHS", 1)
    monkeypatch.setattr(sorted_data, "GROUP", 64)


def test_every_way_trains_on_a_sorted_file_and_after_one_pass(small, monkeypatch):
    seen = {}

    def looked_at(way, held_out, order):
        with h5py.File(way.file.path) as file:
            seen[way.name] = describe_values([file["targets"][:]])["sorted"]
        return trained(way, held_out, order)

    trained = sorted_data._trained
    monkeypatch.setattr(sorted_data, "_trained", looked_at)
    found = {figure.name: figure for figure in sorted_data.measure(ONCE)}
    assert seen == {
        "full shuffle": True, "blocks": True, "no shuffle": True, "blocks, after one pass": False,
    }  # fmt: skip
    assert all(figure.value > 0 for figure in found.values())
    [judged] = [name for name, figure in found.items() if figure.bound is not None]
    assert judged == "sorted: error, blocks, after one pass over full shuffle"
    assert not found[judged].at_least


def test_the_weather_is_cut_after_september(tmp_path):
    training, held_out = sorted_data.weather(tmp_path)
    assert len(training["targets"]) + len(held_out["targets"]) == 4020
    assert 900 < len(held_out["targets"]) < 1100
