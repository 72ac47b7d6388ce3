"""The area under the ROC curve from binned class counts, and sums that are tensors."""

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from app.lifecycle import Reason
from tests.trainer.lab import Lab
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.auc import BINS, auc_of, class_counts
from worker.trainer.recipes.base import Batch
from worker.trainer.recipes.class_scores import class_sums
from worker.trainer.recipes.sequence import SequenceTask

# Logits of negatives and positives: their means, and the deviation of both.
MODELS = {
    "usual": (-1.0, 1.0, 1.5),
    "worse than chance": (1.0, -1.0, 1.5),
    "hardly trained": (-0.01, 0.01, 0.03),
    "unsure of a rare class": (-2.3, -2.2, 0.1),
    "sure of a very rare class": (-9.0, -7.0, 1.5),
    "confident": (-12.0, 9.0, 8.0),
    "confidently wrong": (14.0, 15.0, 3.0),
    "only small numbers": (-34.0, -30.0, 3.0),
}


def made(name: str, positives: float = 0.2) -> tuple[NDArray[Any], NDArray[Any]]:
    low, high, deviation = MODELS[name]
    random = np.random.default_rng(0)
    labels = random.random(20_000) < positives
    logits = np.where(labels, high, low) + deviation * random.standard_normal(len(labels))
    return (1 / (1 + np.exp(-logits))).astype(np.float32), labels


@pytest.mark.parametrize("name", MODELS)
def test_it_is_that_of_scikit_learn(name: str) -> None:
    scores, labels = made(name)
    counts = class_counts(torch.tensor(scores), torch.tensor(labels))
    assert auc_of(counts) == pytest.approx(roc_auc_score(labels, scores), abs=1e-3)


@pytest.mark.parametrize(
    ("mean", "separation", "deviation", "positives"),
    [
        (-4.6, 0.1, 0.1, 0.01),
        (-7.0, 0.3, 0.2, 0.002),
        (-2.2, 0.03, 0.03, 0.1),
        (0.0, 0.001, 0.001, 0.5),
    ],
)
def test_narrow_scores_fill_enough_bins(
    mean: float, separation: float, deviation: float, positives: float
) -> None:
    random = np.random.default_rng(0)
    labels = random.random(200_000) < positives
    logits = mean + separation * labels + deviation * random.standard_normal(len(labels))
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    counts = class_counts(torch.tensor(scores), torch.tensor(labels))
    assert auc_of(counts) == pytest.approx(roc_auc_score(labels, scores), abs=1e-3)


@pytest.mark.parametrize(("classes", "bins"), [(64, BINS), (128, BINS // 2), (4_096, 1_024)])
def test_counts_of_many_classes_have_fewer_bins(classes: int, bins: int) -> None:
    sums = class_sums(torch.rand(2, classes), torch.tensor([0, 1]), None, with_auc=True)
    assert sums["auc"].shape == (classes, 2, bins)


@pytest.mark.parametrize("rounded", [2, 1, 0])
def test_ties_count_half(rounded: int) -> None:
    scores, labels = made("usual")
    scores = scores.round(rounded)
    counts = class_counts(torch.tensor(scores), torch.tensor(labels))
    assert auc_of(counts) == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)


def test_counts_add_up_over_batches_and_obey_weights() -> None:
    scores, labels = map(torch.tensor, made("usual"))
    weights = torch.rand(len(scores), generator=torch.Generator().manual_seed(0)).double()
    weights[::3] = 0
    truth = labels.float()
    truth[::3] = torch.nan  # not known
    whole = class_counts(scores, truth, weights)
    pieces = [scores.chunk(7), truth.chunk(7), weights.chunk(7)]
    parts = torch.stack([class_counts(*each) for each in zip(*pieces, strict=True)])
    torch.testing.assert_close(parts.sum(0), whole, rtol=1e-12, atol=0)
    expected = roc_auc_score(labels[weights > 0], scores[weights > 0],
                             sample_weight=weights[weights > 0])  # fmt: skip
    assert auc_of(whole) == pytest.approx(expected, abs=1e-3)
    assert whole.sum().item() == pytest.approx(weights.sum().item())


def test_without_one_of_the_classes_there_is_none() -> None:
    scores = torch.tensor([0.0, 0.3, 1.0, 1.0000001, torch.nan])
    for labels in (torch.zeros(5), torch.ones(5)):
        counts = class_counts(scores, labels)
        assert counts.sum() == 5
        assert np.isnan(auc_of(counts))


class Counting(SequenceTask):
    """Also measures a vector and a matrix, each of another sum over the samples."""

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        sums = super().measure(model, batch)
        targets = batch.arrays["targets"].double()
        counts = class_counts(targets.clamp(0, 1), targets > 0)
        return {"vector": targets.sum(0).flatten(), **sums, "counts": counts}

    def scores(self, sums: Mapping[str, Any], samples: int) -> dict[str, float]:
        assert isinstance(sums["loss"], float)
        assert sums["counts"].shape == (2, BINS)
        scores = super().scores(sums, samples)
        return {
            **scores,
            "loss": sums["vector"].sum().item() + 1e6 * sums["counts"][1].sum().item(),
        }


def test_an_evaluation_adds_up_tensors(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: Counting)
    patch = {"training": {"epochs": 1}, "evaluation": {"batch_size": 5}}
    result = lab.run(patch=patch).result
    with h5py.File(lab.data) as file:
        targets = file["targets"][42:54].astype(np.float64)
    expected = targets.sum() + 1e6 * (targets > 0).sum()
    assert result["last"]["val_loss"] == pytest.approx(expected)
    assert result["baselines"]


class Growing(SequenceTask):
    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return super().measure(model, batch) | {"each": batch.arrays["targets"].double().flatten()}


def test_a_sum_whose_shape_follows_the_batch_is_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: Growing)
    told = r"measure of the recipe sequence gave for 'each' a tensor of shape \(\d+,\), and one of"
    with pytest.raises(TrainerError, match=told) as caught:
        lab.run(patch={"evaluation": {"batch_size": 5}})
    assert caught.value.reason is Reason.trainer_error
