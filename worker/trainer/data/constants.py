"""Targets that never vary in the training part, of which nothing can be learned."""

import math
from collections.abc import Mapping
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from app.spec.run import RunSpec
from worker.trainer.data.checked import Checked
from worker.trainer.data.feed.rows import piece_bounds, read_rows
from worker.trainer.data.source import Rows
from worker.trainer.data.split import Part
from worker.trainer.report.preparing import Preparing

# What is read of a target, and in how many stretches of neighbours if that is not all of it.
MOST_BYTES, STRETCHES = 64 * 2**20, 16
MOST_NAMED = 5
ADVICE = (
    "Nothing can be learned of it. Give the training part samples in which it varies, by data.split"
    " or by a larger file, or leave it out of the targets."
)


def constant_targets(
    spec: RunSpec, checked: Mapping[str, Checked], part: Part, preparing: Preparing
) -> list[tuple[str, str]]:
    """Returns (code, sentence) for each target with columns that never vary in the training part.

    Only quantities are judged, at most MOST_BYTES of each. Raises DataError and StopRequested.
    """
    if "targets" not in spec.recipe.has_scale:
        return []
    training = checked[part.dataset]
    warnings: list[tuple[str, str]] = []
    for target in spec.recipe.learned_targets(spec.data):
        if set(training.layouts[target].fields) != {target}:
            continue
        low, high, samples = _extremes(training, part, target, preparing)
        constant = np.flatnonzero(low == high).tolist()
        if constant:
            looked_at = f"all {samples:,} training samples"
            if samples < len(part):
                looked_at = f"the {samples:,} training samples that were looked at"
            named = _named(target, constant, low)
            warnings.append(("constant_target", f"{named} in {looked_at}. {ADVICE}"))
    return warnings


def _named(target: str, constant: list[int], values: NDArray[np.float64]) -> str:
    if len(constant) == len(values) and len({*values.tolist()}) == 1:
        return f"{target!r} is {values[0]:.6g}"
    named = [f"column {one} of {target!r} is {values[one]:.6g}" for one in constant[:MOST_NAMED]]
    if (more := len(constant) - MOST_NAMED) > 0:
        named.append(f"{more:,} more do not vary")
    text = ", ".join(named)
    return text[0].upper() + text[1:]


def _extremes(
    training: Checked, part: Part, target: str, preparing: Preparing
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Returns the least and the largest value by column, and the number of samples they are of.
    NaN is passed over, because it stands for a missing label.
    """
    with closing(training.open_some([target])) as source:
        field = source.fields[target]
        columns = math.prod(field.shape)
        most = MOST_BYTES // (columns * field.dtype.itemsize)
        rows = part.take(_places(len(part), max(STRETCHES, most)))
        low, high = np.full(columns, np.nan), np.full(columns, np.nan)
        for start, stop in piece_bounds(source.fields, len(rows)):
            values = np.empty((stop - start, *field.shape), field.dtype)
            read_rows(source, rows[start:stop], {target: values})
            table = values.reshape(stop - start, -1)
            low = np.fmin(low, np.fmin.reduce(table, axis=0))
            high = np.fmax(high, np.fmax.reduce(table, axis=0))
            preparing.piece_done()
    return low, high, len(rows)


def _places(samples: int, most: int) -> Rows:
    if samples <= most:
        return np.arange(samples)
    each = most // STRETCHES
    begins = np.linspace(0, samples - each, STRETCHES).astype(np.int64)
    return np.unique(begins[:, None] + np.arange(each))
