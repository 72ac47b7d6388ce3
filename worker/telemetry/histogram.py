"""Counted durations, as Prometheus wants them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Counts of durations up to each bound in seconds, the last one unbounded; never changed."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...] = ()
    total_seconds: float = 0.0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Histogram":
        """As a trainer has counted; ValueError when the counts do not go with the bounds."""
        bounds, counts = tuple(document["bounds"]), tuple(document["counts"])
        if len(counts) != len(bounds) + 1:
            raise ValueError(f"{len(counts)} counts for {len(bounds)} bounds")
        return cls(bounds, counts, document["seconds"])

    def observe(self, seconds: float) -> "Histogram":
        """A histogram with one more duration of this length."""
        counts = list(self.counts or (0,) * (len(self.bounds) + 1))
        index = next((i for i, bound in enumerate(self.bounds) if seconds <= bound), -1)
        counts[index] += 1
        return replace(self, counts=tuple(counts), total_seconds=self.total_seconds + seconds)

    def buckets(self) -> list[tuple[str, float]]:
        """(Upper bound, count of durations up to it), cumulative."""
        cumulated, pairs = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            cumulated += count
            pairs.append((bound, float(cumulated)))
        return pairs


CHECKPOINT_DURATIONS = Histogram((0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0))
