"""What runs like a new one took of memory: measured points, and the lines through them.

The store keeps the points, the guard plans by them. Pure arithmetic. A point holds what was
measured beside the exact part of the plan (weights, gradients, optimizer, data, slots).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

# Points that are kept of runs that are alike, and those of one batch size that count: the newest.
KEPT_POINTS, COUNTED_POINTS = 16, 3


class ProfileKey(NamedTuple):
    """What runs agree in that take the same memory for a step. `shape` and `runtime` are digests:
    of the recipe's parameters and the arrays' shapes, and of what it is computed with.
    """

    recipe: str
    recipe_version: str
    shape: str
    runtime: str
    device: str


@dataclass(frozen=True)
class Point:
    """One measurement; bytes beside the exact part, where the model lies unless said otherwise."""

    batch_size: int
    """Samples that were computed at once."""
    training_bytes: int | None = None
    evaluation_batch_size: int = 0
    """The same of an evaluation; 0: none was made."""
    evaluation_bytes: int | None = None
    host_bytes: int | None = None
    """Of the host, beside a GPU."""
    accumulated: bool = False
    """Whether a step had several batches."""
    ran_out: Literal["training", "evaluating"] | None = None
    """In which phase memory ran out: the bytes of that one are the least that it takes."""
    parameters: int | None = None
    """Of the model, as it was built."""
    samples_per_second: float | None = None
    """Of steps alone: nothing was waited for."""
    torch: str | None = None
    run_id: int | None = None
    """None: a probe measured it."""
    worker: str = ""
    measured_at: float = 0.0
    """Unix seconds."""

    @property
    def when(self) -> str:
        """RFC 3339, to the second."""
        return datetime.fromtimestamp(self.measured_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def who(self) -> str:
        """What measured it, for people."""
        return f"a probe on {self.worker}" if self.run_id is None else f"run {self.run_id}"


@dataclass(frozen=True)
class Measured:
    """Points of one key, oldest first; who measured them, and when, the store fills in."""

    key: ProfileKey
    points: Sequence[Point]


@dataclass(frozen=True)
class Estimate:
    """Bytes beside the exact part. `planned` is None where only the least is known: `least` is
    what was measured to be needed, or follows from it.
    """

    least: int
    planned: int | None
    how: str
    """In words, by what it was reckoned."""
    by_probe: bool = False
    """Whether no run was measured, only the few steps of a probe."""
    ran_out: Point | None = None
    """What ran out of memory with this batch, or with a smaller one."""


@dataclass(frozen=True)
class Profile:
    """The points of one key, newest first."""

    points: tuple[Point, ...]

    @property
    def parameters(self) -> int | None:
        """Of the model, as it was built."""
        return next((p.parameters for p in self.points if p.parameters is not None), None)

    def training(self, batch: int, gradients_bytes: int, *, accumulated: bool) -> Estimate | None:
        """Of a training step. Gradients that wait for other batches may come on top of what a step
        of one batch takes: as much as was measured with another batch, or all of them.
        """
        alike = [*_training_of(p for p in self.points if p.accumulated is accumulated)]
        others = [*_training_of(p for p in self.points if p.accumulated is not accumulated)]
        found, other = _estimate(alike, batch), _estimate(others, batch)
        sizes = {sample.batch for sample in alike if not sample.is_bound}
        known = found is not None and found.planned is not None
        if known and (batch in sizes or len(sizes) > 1 or not accumulated):
            return found
        if other is None or other.planned is None:
            return found or other
        more = gradients_bytes
        if known:
            (size,) = sizes
            several, one = _estimate(alike, size), _estimate(others, size)
            if several and one and several.planned is not None and one.planned is not None:
                more = max(0, several.planned - one.planned)
        how = f"{other.how}, in steps of {'one batch' if accumulated else 'several batches'}"
        least = other.least if accumulated else max(0, other.least - gradients_bytes)
        planned = other.planned + more * accumulated
        least = max(least, found.least if found and not known else 0)
        ran_out = other.ran_out or (found.ran_out if found else None)
        return Estimate(least, max(planned, least), how, other.by_probe, ran_out)

    def evaluating(self, batch: int) -> Estimate | None:
        """Of an evaluation with batches of so many samples."""
        samples = (
            _Sample(p.evaluation_batch_size, p.evaluation_bytes, p.ran_out == "evaluating", p)
            for p in self.points
            if p.evaluation_batch_size and p.evaluation_bytes is not None
        )
        return _estimate(samples, batch)

    @property
    def of_successes(self) -> "Profile":
        """Without what ran out of memory, as a run that went down the memory ladder is judged."""
        return Profile(tuple(p for p in self.points if p.ran_out is None))

    @property
    def host_bytes(self) -> int | None:
        """Of the host beside a GPU: the most of the newest points, whatever their batch."""
        known = [p.host_bytes for p in self.points if p.host_bytes is not None]
        return max(known[:COUNTED_POINTS], default=None)

    @property
    def rates(self) -> dict[int, float]:
        """By batch size, samples a second of steps alone, as the newest point has it."""
        found: dict[int, float] = {}
        for point in self.points:
            if point.samples_per_second:
                found.setdefault(point.batch_size, point.samples_per_second)
        return found

    def as_json(self) -> dict[str, Any]:
        newest = self.points[0]
        return {
            "points": len(self.points),
            "runs": list(dict.fromkeys(p.run_id for p in self.points if p.run_id is not None)),
            "batch_sizes": sorted({p.batch_size for p in self.points}),
            "worker": newest.worker,
            "at": newest.when,
            "ran_out_of_memory": any(p.ran_out for p in self.points),
        }


class _Sample(NamedTuple):
    batch: int
    bytes: int
    is_bound: bool
    """Whether it is the least that this batch takes."""
    point: Point


def _training_of(points: Iterable[Point]) -> Iterator[_Sample]:
    for p in points:
        if p.training_bytes is not None:
            yield _Sample(p.batch_size, p.training_bytes, p.ran_out == "training", p)


def _estimate(samples: Iterable[_Sample], batch: int) -> Estimate | None:
    """For a batch, by what others took; None where nobody was measured."""
    found = list(samples)
    bounds = [
        s
        for i, s in enumerate(found)
        if s.is_bound
        and s.batch <= batch
        and not any(not n.is_bound and n.batch >= s.batch for n in found[:i])
    ]
    bound = max(bounds, key=lambda s: s.bytes, default=None)
    measured = _by_batch(s for s in found if not s.is_bound)
    line = _on_line(measured, batch) if measured else None
    if bound is None:
        return line
    how = f"at least, for {bound.point.who} ran out of memory with a batch of {bound.batch:,}"
    if line is None or line.planned is None:
        return Estimate(bound.bytes, None, how, ran_out=bound.point)
    least, planned = max(bound.bytes, line.least), max(bound.bytes, line.planned)
    return Estimate(least, planned, f"{line.how}; {how}", line.by_probe, bound.point)


def _by_batch(samples: Iterable[_Sample]) -> dict[int, _Sample]:
    """Of each batch size, in rising order, the one that took most of the newest few. Runs count
    before probes, whose few steps take less.
    """
    groups: dict[int, list[_Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.batch, []).append(sample)
    chosen = {}
    for batch in sorted(groups):
        of_runs = [s for s in groups[batch] if s.point.run_id is not None]
        newest = (of_runs or groups[batch])[:COUNTED_POINTS]
        chosen[batch] = max(newest, key=lambda s: s.bytes)
    return chosen


def _on_line(measured: Mapping[int, _Sample], batch: int) -> Estimate:
    if (same := measured.get(batch)) is not None:
        return Estimate(
            same.bytes, same.bytes, f"as {_told(same)} measured it", same.point.run_id is None
        )
    sizes = list(measured)
    if len(sizes) == 1:
        (one,) = measured.values()
        return _by_one(one, batch)
    above = next((i for i, size in enumerate(sizes) if size > batch), len(sizes) - 1)
    low, high = (measured[size] for size in sizes[max(0, above - 1) : max(0, above - 1) + 2])
    slope = max(0.0, (high.bytes - low.bytes) / (high.batch - low.batch))
    value = max(0, int(low.bytes + slope * (batch - low.batch)))
    how = (
        f"on the straight line through {_told(low)} (batch {low.batch:,}) and {_told(high)} "
        f"(batch {high.batch:,})"
    )
    return Estimate(value, value, how, None in (low.point.run_id, high.point.run_id))


def _by_one(one: _Sample, batch: int) -> Estimate:
    """One batch size alone: a part of it may be the same for every batch, or none."""
    in_proportion = one.bytes * batch // one.batch
    least, planned = sorted((one.bytes, in_proportion))
    assumed = "in proportion to the batch" if batch > one.batch else "no less than"
    how = f"{assumed} as {_told(one)} measured with a batch of {one.batch:,}, the only one"
    if batch < one.batch:
        how = f"as much as {_told(one)} measured with a batch of {one.batch:,}, the only one"
    return Estimate(least, planned, how, one.point.run_id is None)


def _told(sample: _Sample) -> str:
    return f"{sample.point.who} on {sample.point.when[:10]}"


def points_of_probe(
    result: Mapping[str, Any], model_bytes: Mapping[str, int], sample_bytes: int
) -> list[Point]:
    """From the result of a probe (`worker.trainer.tools.one_step`). `model_bytes`: what is exact of
    the model while `training` and `evaluating`; `sample_bytes`: of a sample in a batch.
    """

    def beside(phase: str, batch: int, peak: int) -> int:
        return max(0, peak - model_bytes[phase] - batch * sample_bytes)

    if ran_out := result.get("out_of_memory"):
        phase, batch = ran_out
        if phase not in model_bytes:  # while it was built
            return []
        taken = beside(phase, batch, result.get("least_bytes") or 0)
        if phase == "training":
            return [Point(batch, taken, ran_out="training")]
        return [Point(batch, None, batch, taken, ran_out="evaluating")]
    evaluation, rates = result["evaluation"], result.get("samples_per_second") or (None, None)
    size, peak = evaluation or (0, 0)
    common = Point(
        batch_size=0,
        evaluation_batch_size=size,
        evaluation_bytes=beside("evaluating", size, peak) if evaluation else None,
        host_bytes=result["host_bytes"] if result.get("device") == "cuda" else None,
        parameters=result.get("parameters"),
        torch=result.get("torch"),
    )
    alone = [
        replace(
            common,
            batch_size=batch,
            training_bytes=beside("training", batch, peak),
            samples_per_second=rate,
        )
        for (batch, peak), rate in zip(result["training"], rates, strict=True)
    ]
    batch = alone[-1].batch_size
    taken = beside("training", batch, result["accumulating"])
    several = replace(common, batch_size=batch, training_bytes=taken, accumulated=True)
    return [*alone, several]
