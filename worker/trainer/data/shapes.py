"""In which shapes batches come, where samples have several rows each: totals, rounded up.

Each shape is compiled and captured anew, so there are few of them. They follow from the samples and
the order alone, so that a resume meets the same ones.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from app.planning.packing import RowSpread, rounded_rows
from worker.trainer.data.batch import ONE_SHAPE, BatchPlan, BatchShapes, Bucket
from worker.trainer.data.layouts.layout import Layout
from worker.trainer.data.order import Order
from worker.trainer.data.source import NO_ROWS, Rows
from worker.trainer.data.split import Part

# Of the totals that the batches of an epoch have, these shares are at or below a bucket.
LEVELS = (0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
# Samples at the beginning of an epoch whose batches are looked at.
LOOKED_AT = 2**20

Counts = Mapping[str, Rows]


def batch_shapes(
    layouts: Iterable[Layout], part: Part, order: Order, plan: BatchPlan
) -> BatchShapes:
    """Of the batches that the plan cuts out of these samples in this order."""
    packed = [one for one in layouts if one.rows_in_batch(NO_ROWS)]
    if not packed:
        return ONE_SHAPE
    looked_at = min(plan.usable_samples, LOOKED_AT)
    seen = _counts(packed, part.take(order.rows(0, 0, looked_at)))
    every = _counts(packed, part.all_rows())
    known = order.shuffle == "none" and looked_at == plan.usable_samples
    totals = _totals(seen, replace(plan, num_samples=looked_at, drop_last=False))
    by_size = {}
    for size in plan.sizes:
        found = totals.get(size)
        most = {name: int(_largest(counts, size)) for name, counts in every.items()}
        if known and found:
            most = {name: int(each.max()) for name, each in found.items()}
        is_usual = size == plan.largest_micro_batch and found is not None
        likely = {name: _spread_of(counts).likely(size) for name, counts in every.items()}
        at_random = order.shuffle == "full"
        levels = [*_levels(found, likely, most, at_random)] if is_usual and found else []
        by_size[size] = _distinct([*levels, _rounded(most)])
    return BatchShapes(by_size, has_spare=not known)


def _counts(layouts: Iterable[Layout], rows: Rows) -> Counts:
    return {name: counts for one in layouts for name, counts in one.rows_in_batch(rows).items()}


def _totals(counts: Counts, plan: BatchPlan) -> dict[int, Counts]:
    """By the size of a batch: the totals of each of that size."""
    starts, stops = np.array(list(plan.bounds(0))).T
    sizes = stops - starts
    found = {}
    for name, each in counts.items():
        ends = np.concatenate(([0], np.cumsum(each)))
        found[name] = ends[stops] - ends[starts]
    return {
        int(size): {name: each[sizes == size] for name, each in found.items()}
        for size in np.unique(sizes)
    }


def _largest(counts: Rows, size: int) -> int:
    """Of so many samples together."""
    return int(np.partition(counts, len(counts) - size)[len(counts) - size :].sum())


def _spread_of(counts: Rows) -> RowSpread:
    return RowSpread(float(counts.mean()), float(counts.std()), int(counts.max()))


def _levels(
    found: Counts, likely: Mapping[str, float], most: Bucket, at_random: bool
) -> Iterator[Bucket]:
    """By the batches that were seen, and one beyond them: other epochs have other batches. Where
    batches are drawn at random it is known how far these go; of blocks of neighbours it is not.
    """
    for level in LEVELS:
        yield _rounded({name: float(np.quantile(each, level)) for name, each in found.items()})
    beyond = {
        name: max(likely[name], each.max() if at_random else 2 * each.max() - np.median(each))
        for name, each in found.items()
    }
    yield _rounded({name: min(float(rows), most[name]) for name, rows in beyond.items()})


def _rounded(totals: Mapping[str, float]) -> Bucket:
    return {name: rounded_rows(rows) for name, rows in totals.items()}


def _distinct(buckets: Iterable[Bucket]) -> tuple[Bucket, ...]:
    found: list[Bucket] = []
    for one in buckets:
        if not found or one != found[-1]:
            found.append(one)
    return tuple(found)
