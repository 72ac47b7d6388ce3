"""Area under the ROC curve, from class counts in fixed score bins that add up over batches."""

import math

import torch
from torch import Tensor

# The counts of one class are 512 KiB. A batch of 512 scores takes 76 µs on one CPU core, and took
# 47 µs with 1,024 bins, which were up to 0.09 off for scores that lie close together.
BINS = 2**15
# Bins are spaced by asinh(logit / FINEST), up to logits of ±LARGEST: 0.00016 wide at a
# probability of 0.5, and 0.03 % of the logit far from it. So neither a model that is hardly better
# than chance nor one that is sure of everything has its scores in a few bins.
FINEST, LARGEST = 0.5, 40.0


def class_counts(
    scores: Tensor, labels: Tensor, weights: Tensor | None = None, bins: int = BINS
) -> Tensor:
    """Counts negatives and positives by score bin, float64 (2, bins), on the scores' device.

    Return it from `Task.measure` under a name of its own; `Task.scores` gets its sum over the part
    under that name, and passes that to `auc_of`. For several labels, stack the counts of each:
    (labels, 2, bins). Pass fewer bins if there are many labels.

    scores: probabilities of the positive class, any shape. labels: of that shape; above 0 is
    positive. weights: of that shape, such as a mask; 0 leaves a score out, even if its label is
    NaN. A score that is NaN counts as 0.5: the loss is NaN then, and ends the run.
    """
    places = _bins(scores.reshape(-1).double(), bins) + bins * (labels.reshape(-1) > 0)
    each = torch.ones_like(places, dtype=torch.float64)
    if weights is not None:
        each = weights.reshape(-1).double()
    counts = torch.zeros(2 * bins, dtype=torch.float64, device=scores.device)
    return counts.index_add(0, places, each).view(2, bins)


def auc_of(counts: Tensor) -> float:
    """Returns the area under the ROC curve, from 0 to 1; NaN if one of the classes is absent.

    Two scores in one bin count half, as ties do. The result is within 1e-3 of that of the scores
    themselves, unless nearly all of them lie in a few bins. Raise `NothingToScore` in `Task.scores`
    if it is NaN, because the loop takes NaN for a training that diverged.
    """
    negatives, positives = counts.double().cpu()
    below = negatives.cumsum(0) - negatives / 2
    pairs = negatives.sum() * positives.sum()
    return float((positives * below).sum() / pairs)


def _bins(scores: Tensor, bins: int) -> Tensor:
    """The number of each score's bin, int64."""
    scores = scores.clamp(0, 1)  # a softmax may exceed 1 by a rounding
    logits = (scores.log() - (-scores).log1p()).nan_to_num(nan=0.0).clamp(-LARGEST, LARGEST)
    share = (logits / FINEST).asinh() / math.asinh(LARGEST / FINEST)
    return ((share + 1) / 2 * bins).long().clamp(max=bins - 1)
