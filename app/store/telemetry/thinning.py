"""Fewer points of a curve that still tell the same: thinned when written, downsampled when read."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.store.records import MetricPoint

MAX_POINTS = 10_000
FIRST_GAP_SECONDS = 1.0
EVALUATION_PREFIXES = ("val_", "test_")

Point = tuple[int, float, float]  # step, unix seconds, value


@dataclass(frozen=True)
class SeriesState:
    """What a curve must remember from beat to beat: points stored, least distance, last time."""

    points: int = 0
    gap_seconds: float = FIRST_GAP_SECONDS
    last_t: float = -math.inf

    @property
    def is_full(self) -> bool:
        return self.points > MAX_POINTS


def is_evaluation(name: str) -> bool:
    """Points of evaluations are few and dear: they are kept however near, up to MAX_POINTS."""
    return name.startswith(EVALUATION_PREFIXES)


def thin(
    points: Iterable[MetricPoint], state: SeriesState
) -> tuple[list[MetricPoint], SeriesState]:
    """The points of one curve that are kept, at most one in `gap_seconds`, and the state after.

    A clock that went back does not end a curve: an earlier time than the last is kept as well.
    """
    kept = []
    for point in points:
        is_near = 0 <= point.t - state.last_t < state.gap_seconds
        if is_near and not (point.keep or is_evaluation(point.name)):
            continue
        kept.append(point)
        state = replace(state, points=state.points + 1, last_t=point.t)
    return kept, state


def least_missed(values: Sequence[float | None]) -> list[int]:
    """Places of every second value of the older half of a curve, but for its first and its
    extremes, of which one is the best. None: no number, or superseded.
    """
    known = [place for place, value in enumerate(values) if value is not None]
    dear = {0}
    if known:
        dear |= {pick(known, key=lambda place: values[place] or 0.0) for pick in (min, max)}
    return [place for place in range(len(values) // 2) if place not in dear][::2]


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """At most `max_points` (2 or more) points: of each stretch its least and its greatest.

    The first and the last point stay, and so do the extremes of the whole curve.
    """
    if len(points) <= max_points:
        return list(points)
    if max_points < 4:
        return [points[0], points[-1]]
    stretches = (max_points - 2) // 2
    inner = points[1:-1]
    chosen = [points[0]]
    for i in range(stretches):
        begin, end = i * len(inner) // stretches, (i + 1) * len(inner) // stretches
        chosen += _extremes(inner[begin:end])
    return [*chosen, points[-1]]


def _extremes(stretch: Sequence[Point]) -> list[Point]:
    finite = [point for point in stretch if math.isfinite(point[2])]
    if not finite:
        return list(stretch[:1])
    low = min(finite, key=lambda point: point[2])
    high = max(finite, key=lambda point: point[2])
    return [low] if low is high else sorted((low, high))
