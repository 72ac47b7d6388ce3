"""How fast runs like a new one were: the store finds it, the guard reckons with it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """What like runs did: medians over the newest of them, in seconds unless said."""

    runs: tuple[int, ...]
    """Their ids, newest first."""
    iterations_per_second: float
    checkpoint_seconds: float | None = None
    """For which one holds the training up."""
    written_seconds: float | None = None
    """Until one is durable."""
    evaluation_seconds: float | None = None
    """For one sample."""
    least_evaluation_steps: float | None = None
    """For one sample: the steps that took as long in the same run, in the run where they are
    fewest; None: as the medians."""
    other_seconds: float | None = None
    """From the start of an attempt to its end, beside steps, evaluations and checkpoints."""
    compiling_seconds: float | None = None
    """A part of these."""
