"""Classes: their cross entropy, what an evaluation counts, its scores, and simple baselines.

Logits are (batch, classes), labels int64 (batch,), class weights float32 (classes,) or None.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from worker.trainer.errors import NothingToScore
from worker.trainer.recipes.auc import BINS, auc_of, class_counts
from worker.trainer.recipes.base import WeightedLoss
from worker.trainer.recipes.fitting import Linear

# The least probability that a regression on indicators gives to a class.
LEAST_PROBABILITY = 1e-3
# Score bins of all classes together, 32 MiB of counts. Each class has at least the fewest.
MOST_BINS, FEWEST_BINS = 2**21, 1_024


def class_loss(
    logits: Tensor, labels: Tensor, weights: Tensor | None
) -> dict[str, Tensor] | WeightedLoss:
    """Returns the mean cross entropy, or the sums of a mean that is weighted by class."""
    if weights is None:
        return {"loss": functional.cross_entropy(logits, labels)}
    each = functional.cross_entropy(logits, labels, weights, reduction="none")
    return WeightedLoss({"loss": each.sum()}, weights[labels].sum())


def class_sums(
    logits: Tensor, labels: Tensor, weights: Tensor | None, *, with_auc: bool
) -> dict[str, Tensor]:
    """Returns what `class_scores` needs of a batch: by class how often it is there, is predicted,
    and is predicted rightly; and with `with_auc`, the counts of one class against all others.
    """
    loss = functional.cross_entropy(logits, labels, weights, reduction="none")
    each = torch.ones_like(loss) if weights is None else weights[labels]
    there, predicted = (
        functional.one_hot(one, logits.shape[1]).double() for one in (labels, logits.argmax(1))
    )
    sums = {
        "loss": loss.double().sum(),
        "weight": each.double().sum(),
        "there": there.sum(0),
        "predicted": predicted.sum(0),
        "right": (there * predicted).sum(0),
    }
    if with_auc:
        shares = logits.double().softmax(1)
        # Of two classes each has the area of the other.
        of_each = range(logits.shape[1]) if logits.shape[1] > 2 else (1,)
        bins = min(BINS, max(FEWEST_BINS, MOST_BINS // len(of_each)))
        counts = [class_counts(shares[:, one], labels == one, bins=bins) for one in of_each]
        sums["auc"] = torch.stack(counts)
    return sums


def class_scores(
    sums: Mapping[str, Any], samples: int, metrics: tuple[str, ...]
) -> dict[str, float]:
    """Returns the loss and these metrics: accuracy, f1 and auc, both means over the classes.

    As in scikit-learn, f1 is over the classes that are there or predicted; auc is over those that
    some samples are of and some are not. Raises NothingToScore if there is none of these.
    """
    right, there, predicted = (sums[name] for name in ("right", "there", "predicted"))
    either = there + predicted
    scores = {
        "loss": sums["loss"] / max(sums["weight"], 1e-12),
        "accuracy": float(right.sum()) / samples,
        "f1": float((2 * right / either)[either > 0].mean()),
    }
    if "auc" in metrics:
        areas = torch.tensor([auc_of(counts) for counts in sums["auc"]])
        known = areas[~areas.isnan()]
        if not len(known):
            others = {name: scores[name] for name in ("loss", *metrics) if name != "auc"}
            raise NothingToScore("all samples are of one class", metric="auc", others=others)
        scores["auc"] = float(known.mean())
    return {name: scores[name] for name in ("loss", *metrics)}


class LinearClasses(Linear):
    """Logits by a regression on an indicator of each class."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(*inputs).clamp(min=LEAST_PROBABILITY).log().float()
