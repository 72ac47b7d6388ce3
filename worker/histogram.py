"""Counted durations, as Prometheus wants them."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Histogram:
    """Counts of durations up to each bound in seconds, the last one unbounded; never changed."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...] = ()
    total_seconds: float = 0.0

    def observe(self, seconds: float, times: int = 1) -> "Histogram":
        """A histogram with `times` more durations of this length."""
        counts = list(self.counts or (0,) * (len(self.bounds) + 1))
        index = next((i for i, bound in enumerate(self.bounds) if seconds <= bound), -1)
        counts[index] += times
        return replace(
            self, counts=tuple(counts), total_seconds=self.total_seconds + seconds * times
        )

    def buckets(self) -> list[tuple[str, float]]:
        """(Upper bound, count of durations up to it), cumulative."""
        cumulated, pairs = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            cumulated += count
            pairs.append((bound, float(cumulated)))
        return pairs


ITERATION_DURATIONS = Histogram(
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
)
CHECKPOINT_DURATIONS = Histogram((0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0))
