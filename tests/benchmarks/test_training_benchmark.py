"""The benchmark of training: the same model with every loader, each sample once an epoch."""

import itertools
import warnings
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.confidence import FEWEST, lower_bound
from benchmarks.loading.arms import Arm
from benchmarks.loading.files import write
from benchmarks.training import figures, gpu
from benchmarks.training.models import MODELS, Subject
from benchmarks.training.rounds import Turns, beside
from benchmarks.training.training import Epoch, Training
from tests.trainer_data.factories import children

# One that computes little shows how they are fed; the others take minutes together.
QUICK = "MLP"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == QUICK else pytest.mark.minutes) for n in MODELS["cpu"]],
)
def test_every_loader_feeds_the_same_training(tmp_path, name):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    before = children()
    beside_the_limit = figures._beside_the_limit(Subject(name), file, FEWEST)
    beside_peers = figures._beside_peers(Subject(name), file, 1)
    found = {figure.name: figure for figure in (*beside_the_limit, *beside_peers)}
    rates = [figure for figure in found.values() if figure.unit == "samples/s"]
    assert len(rates) == 11
    assert all(figure.value > 0 for figure in rates)
    assert all(0 < figure.also["% waiting for batches"] < 100 for figure in rates)
    bounds = [figure for name, figure in found.items() if name.endswith("lower bound")]
    assert all(0 < figure.value <= figure.also["median"] for figure in bounds)
    assert len(bounds) == 3
    assert children() <= before


@pytest.mark.parametrize(("count", "place"), [(5, 1), (7, 1), (8, 2), (15, 4), (30, 11)])
def test_the_lower_bound_is_that_of_the_sign_test(count, place):
    """How many of so many tosses of a coin are heads: fewer than `place` in a twentieth of cases,
    `place` or fewer in more.
    """
    assert lower_bound([float(value) for value in range(count, 0, -1)]) == place


def test_few_rounds_have_no_bound():
    with pytest.raises(ValueError, match="4 rounds show nothing with confidence; 5 do"):
        lower_bound([1.0] * 4)


def seconds_in_turn(monkeypatch, passed):
    """Epochs that take so long, one after the other; the names of their arms as they come."""
    order = []

    def epoch(turns):
        order.append(turns.arm.name)
        return Epoch(float(next(passed)), 0.0)

    monkeypatch.setattr(Turns, "_epoch", epoch)
    return order


def arms_of(*names):
    return [Arm(name, lambda number: iter(())) for name in names]


def test_an_arm_counts_beside_the_limit_before_and_after_it(tmp_path, monkeypatch):
    """Each warmed up, so that what an arm reads ahead for its next epoch slows nobody else; where
    the machine becomes slower and slower, nobody is the faster.
    """
    file = write(tmp_path, "contiguous", samples=3, features=2)
    order = seconds_in_turn(monkeypatch, itertools.count(10))
    limit, arm, other = arms_of("limit", "arm", "other")
    rounds, ratios = beside(limit, [arm, other], partial(Training, Subject("MLP"), file), 2)
    between = ["limit", "limit"]
    assert order == between + 2 * (["arm"] * 3 + between + ["other"] * 3 + between)
    assert ratios == {"arm": [1.0, 1.0], "other": [1.0, 1.0]}
    assert [epoch.seconds for epoch in rounds["arm"]] == [13, 14, 23, 24]
    assert [epoch.seconds for epoch in rounds["limit"]] == [16, 21, 26, 31]


def test_of_two_arms_that_are_the_same_either_is_as_often_the_faster(tmp_path, monkeypatch):
    """Where most epochs are alike and some take far longer, as on a shared machine."""
    file = write(tmp_path, "contiguous", samples=3, features=2)
    random = np.random.default_rng(5)
    seconds_in_turn(monkeypatch, iter(lambda: 1 + random.pareto(1.5), None))
    limit, arm = arms_of("limit", "arm")
    ratios = beside(limit, [arm], partial(Training, Subject("MLP"), file), 2_000)[1]["arm"]
    assert sum(ratio > 1 for ratio in ratios) == pytest.approx(1_000, abs=100)


def test_an_epoch_with_samples_missing_is_no_figure(tmp_path):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    whole = figures.ready(file)
    lazy = Arm("lazy", lambda number: iter(list(whole.epoch(number))[1:]))
    with pytest.raises(RuntimeError, match="lazy brought 172 samples instead of 300"):
        Training(Subject("MLP"), file).epoch(lazy, 0)


def test_a_variant_in_bf16_trains(tmp_path):
    file = write(tmp_path, "contiguous", samples=300, features=2)
    training = Training(Subject("MLP", bf16=True), file)
    assert training.epoch(figures.ready(file), 0).seconds > 0


def test_what_is_asked_for_on_a_gpu(tmp_path, monkeypatch):
    """On a CPU in the place of a GPU: which figures come of what CUDA says."""
    subjects = [Subject("MLP"), Subject("LSTM")]
    variants = [variant.name for variant in gpu.variants_on_gpu(subjects)]
    assert variants == ["MLP, bf16", "MLP, compiled"]

    def synchronize(mode):
        if mode == "warn":
            warnings.warn("called a synchronizing CUDA operation (…)", stacklevel=1)
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    pinned = {"allocated_bytes.peak": 600 * 2**20}
    monkeypatch.setattr(gpu, "_give_back_page_locked_memory", lambda: None)
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: pinned)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", synchronize)
    monkeypatch.setattr(torch.cuda, "utilization", lambda: 97)
    monkeypatch.setattr(gpu, "UTILIZATION_SECONDS", 0.05)
    file = write(tmp_path, "contiguous", samples=300, features=2)
    found = gpu.on_gpu(file, subjects[:1], "COMMAND")
    assert [(figure.name, figure.value, figure.holds) for figure in found] == [
        ("MLP: synchronizations in an epoch", 1, False),
        ("MLP: page-locked memory", 600, False),
        ("MLP: utilization", 97, True),
    ]
