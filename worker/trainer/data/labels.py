"""Classes that a part of the data lacks, where the split says row by row what is in which part."""

import math
from collections.abc import Mapping
from contextlib import closing

import numpy as np

from app.planning.labels import lacking_sentence
from app.spec.data import ChronologicalSplit, Data, DatasetsSplit
from worker.trainer.data.checked import Checked
from worker.trainer.data.feed.rows import piece_bounds, read_rows
from worker.trainer.data.source import Rows
from worker.trainer.data.split import Part, Parts
from worker.trainer.report.preparing import Preparing

# Labels that are read of each part. Of a larger part they are taken at even distances.
MOST_LABELS = 1_000_000


def lacking_classes(
    data: Data, checked: Mapping[str, Checked], parts: Parts, preparing: Preparing
) -> list[str]:
    """Returns a sentence for each part that lacks a class which another part has.

    It reads targets of one number a sample, MOST_LABELS of each part at most. The guard has judged
    a split in the order of the file, or by datasets, at submission. Raises DataError and
    StopRequested.
    """
    if isinstance(data.split, ChronologicalSplit | DatasetsSplit):
        return []
    named = {"training": parts.train, "validation": parts.validation, "test": parts.test}
    every = {name: part for name, part in named.items() if part}
    sentences: list[str] = []
    for target in data.targets:
        fields = checked[data.dataset].layouts[target].fields
        if set(fields) != {target} or math.prod(fields[target].shape) != 1:
            continue
        labels = {
            name: _labels(checked[part.dataset], part, target, preparing)
            for name, part in every.items()
        }
        all_labels = set[int]().union(*labels.values())
        for name, part in every.items():
            if lacking := sorted(all_labels - labels[name]):
                sentences.append(_sentence(name, part, lacking, target))
    return sentences


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


def _labels(checked: Checked, part: Part, target: str, preparing: Preparing) -> set[int]:
    """The classes in the part, as far as it is read."""
    rows = part.take(_places(len(part)))
    labels: set[int] = set()
    with closing(checked.open_some([target])) as source:
        for start, stop in piece_bounds(source.fields, len(rows)):
            field = source.fields[target]
            values = np.empty((stop - start, *field.shape), field.dtype)
            read_rows(source, rows[start:stop], {target: values})
            found = np.unique(values)
            labels.update(found[np.isfinite(found)].astype(np.int64).tolist())
            preparing.piece_done()
    return labels


def _places(samples: int) -> Rows:
    if samples <= MOST_LABELS:
        return np.arange(samples)
    return np.arange(MOST_LABELS) * samples // MOST_LABELS
