"""Counts that follow from a spec."""

import pytest

from app.planning.arithmetic import log_interval, part_sizes, steps_per_epoch, total_steps
from app.spec.data import ChronologicalSplit
from app.spec.training import Training


def test_the_weather_sample_is_cut_at_the_end_of_september():
    split = ChronologicalSplit(validation_fraction=0.2545)
    assert part_sizes(split, 4020) == (2997, 1023, 0)


@pytest.mark.parametrize(
    ("samples", "batch", "accumulate", "drop", "steps"),
    [(10, 5, 1, False, 2), (11, 5, 1, False, 3), (11, 5, 1, True, 2), (11, 5, 2, False, 2),
     (4, 5, 1, True, 0), (25, 5, 2, False, 3)],
)  # fmt: skip
def test_steps_of_an_epoch_count_the_partial_window(samples, batch, accumulate, drop, steps):
    training = Training(batch_size=batch, gradient_accumulation_steps=accumulate, drop_last=drop)
    assert steps_per_epoch(training, samples) == steps


def test_max_steps_ends_before_the_epochs():
    assert total_steps(Training(epochs=3, batch_size=5), 10) == 6
    assert total_steps(Training(epochs=3, batch_size=5, max_steps=4), 10) == 4


@pytest.mark.parametrize(("steps", "interval"), [(1, 1), (199, 1), (2000, 10), (10**6, 50)])
def test_the_log_interval_is_a_function_of_the_steps(steps, interval):
    assert log_interval(Training(), steps) == interval
