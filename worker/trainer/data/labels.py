"""Classes that a part of the data lacks, and parts that have no AUC because of that."""

import math
from collections.abc import Mapping
from contextlib import closing

import numpy as np

from app.planning.labels import lacking_sentence
from app.spec.data import ChronologicalSplit, DatasetsSplit
from app.spec.run import RunSpec
from worker.trainer.data.checked import Checked
from worker.trainer.data.feed.rows import piece_bounds, read_rows
from worker.trainer.data.source import Rows
from worker.trainer.data.split import Part, Parts
from worker.trainer.errors import DataError
from worker.trainer.report.preparing import Preparing

# Labels that are read of each part. Of a larger part they are taken at even distances.
MOST_LABELS = 1_000_000
MOST_TOLD = 8


def judge_labels(
    spec: RunSpec, checked: Mapping[str, Checked], parts: Parts, preparing: Preparing
) -> list[tuple[str, str]]:
    """Returns (code, sentence) for each class that a part lacks, and for a test part without AUC.

    It reads the targets, MOST_LABELS of each part at most, if the guard could not judge the split
    at submission or AUC is a metric. Raises DataError, also if the validation part has no AUC, and
    StopRequested.
    """
    in_order = isinstance(spec.data.split, ChronologicalSplit | DatasetsSplit)
    with_auc = "auc" in spec.evaluation.metrics
    if in_order and not with_auc:
        return []
    named = {"training": parts.train, "validation": parts.validation, "test": parts.test}
    every = {name: part for name, part in named.items() if part}
    warnings: list[tuple[str, str]] = []
    for target in spec.recipe.learned_targets(spec.data):
        if set(checked[spec.data.dataset].layouts[target].fields) != {target}:
            continue
        labels = {
            name: _labels(checked[part.dataset], part, target, preparing)
            for name, part in every.items()
        }
        if not in_order:
            sentences = _lacking(every, labels, target)
            warnings += [("class_lacking", one) for one in sentences]
        if with_auc:
            warnings += _without_auc(every, labels, target)
    return warnings


def _lacking(
    every: Mapping[str, Part], labels: Mapping[str, list[set[int]]], target: str
) -> list[str]:
    """Returns a sentence by part and column, MOST_TOLD at most and the number of others."""
    sentences: list[str] = []
    for column, each in enumerate(zip(*labels.values(), strict=True)):
        name_of_column = target if len(labels["training"]) == 1 else f"{target}[:, {column}]"
        all_labels = set[int]().union(*each)
        for (name, part), there in zip(every.items(), each, strict=True):
            if lacking := sorted(all_labels - there):
                sentences.append(_sentence(name, part, lacking, name_of_column))
    if (more := len(sentences) - MOST_TOLD) > 0:
        sentences[MOST_TOLD:] = [f"{more:,} more columns of {target!r} lack classes in a part."]
    return sentences


def _without_auc(
    every: Mapping[str, Part], labels: Mapping[str, list[set[int]]], target: str
) -> list[tuple[str, str]]:
    """Returns a warning of a test part without AUC. DataError for such a validation part."""
    warnings: list[tuple[str, str]] = []
    for name in ("validation", "test"):
        if name not in every or len(every[name]) > MOST_LABELS:
            continue
        if any(len(there) > 1 for there in labels[name]):
            continue
        told = f"All samples of the {name} part are of one class of {target!r}: it has no auc."
        fix = (
            "Draw the parts at random (data.split.method: random), add samples of another class, or"
            " leave auc out of evaluation.metrics."
        )
        if name == "validation":
            raise DataError(f"{told} {fix}")
        warnings.append(("test_without_auc", f"{told} The test scores come without it. {fix}"))
    return warnings


def _sentence(name: str, part: Part, lacking: list[int], target: str) -> str:
    looked_at = (
        f" This is known of {MOST_LABELS:,} of its {len(part):,} samples; the others were not "
        "looked at."
        if len(part) > MOST_LABELS
        else ""
    )
    matter = (
        "The model cannot learn what it is never shown."
        if name == "training"
        else "Its scores say nothing of that, and a mean over classes leaves it out."
    )
    return (
        f"{lacking_sentence(name, lacking, target)}{looked_at} {matter} Enlarge the part in "
        "data.split, or add samples to the file."
    )


def _labels(checked: Checked, part: Part, target: str, preparing: Preparing) -> list[set[int]]:
    """Returns the classes by column of the target, as far as the part is read."""
    rows = part.take(_places(len(part)))
    with closing(checked.open_some([target])) as source:
        field = source.fields[target]
        labels = [set[int]() for _ in range(math.prod(field.shape))]
        for start, stop in piece_bounds(source.fields, len(rows)):
            values = np.empty((stop - start, *field.shape), field.dtype)
            read_rows(source, rows[start:stop], {target: values})
            for there, column in zip(labels, values.reshape(stop - start, -1).T, strict=True):
                found = np.unique(column)
                there.update(found[np.isfinite(found)].astype(np.int64).tolist())
            preparing.piece_done()
    return labels


def _places(samples: int) -> Rows:
    if samples <= MOST_LABELS:
        return np.arange(samples)
    return np.arange(MOST_LABELS) * samples // MOST_LABELS
