"""Lines through measured points: what another batch takes, for sure and as it is planned."""

from typing import Any

import pytest

from app.planning.profile import COUNTED_POINTS, Point, Profile


def point(batch: int, taken: int, **more: Any) -> Point:
    return Point(batch, taken, **{"run_id": 7, "worker": "box", **more})


def training(batch: int, *points: Point, accumulated: bool = False) -> tuple[int, int | None]:
    found = Profile(points).training(batch, 50, accumulated=accumulated)
    assert found is not None
    return found.least, found.planned


def test_of_one_batch_the_newest_few_count_and_of_them_the_largest():
    points = [point(8, taken) for taken in (100, 130, 110, 900)]
    assert len(points) == COUNTED_POINTS + 1
    assert training(8, *points) == (130, 130)


def test_a_probe_counts_where_no_run_was_measured():
    probe = point(8, 90, run_id=None)
    assert training(8, probe, point(8, 60)) == (60, 60)
    found = Profile((probe,)).training(8, 0, accumulated=False)
    assert found is not None
    assert (found.planned, found.by_probe) == (90, True)
    assert "a probe on box" in found.how


@pytest.mark.parametrize(("batch", "taken"), [(16, 200), (32, 300), (48, 350), (64, 400), (96, 500),
                                              (8, 150)])  # fmt: skip
def test_other_batches_are_on_the_line_through_their_neighbours(batch, taken):
    points = point(64, 400), point(16, 200), point(32, 300)
    assert training(batch, *points) == (taken, taken)


def test_a_larger_batch_never_takes_less():
    assert training(100, point(10, 300), point(20, 280)) == (300, 300)


def test_one_batch_size_alone_gives_bounds():
    """A part of what it took may be the same for every batch, or none."""
    assert training(40, point(10, 100)) == (100, 400)
    assert training(5, point(10, 100)) == (50, 100)
    found = Profile((point(10, 100),)).training(40, 0, accumulated=False)
    assert found is not None
    assert "in proportion" in found.how


def test_what_ran_out_of_memory_is_the_least_of_it_and_of_larger_batches():
    ran_out = point(32, 800, ran_out="training")
    assert training(32, ran_out) == (800, None)
    assert training(64, ran_out, point(8, 100)) == (800, 800)
    assert training(16, ran_out, point(8, 100)) == (100, 200)
    found = Profile((ran_out,)).training(64, 0, accumulated=False)
    assert found is not None
    assert found.ran_out is ran_out
    assert Profile((ran_out,)).training(16, 0, accumulated=False) is None
    assert Profile((ran_out, point(8, 100))).of_successes.points == (point(8, 100),)


def test_what_was_measured_since_takes_the_place_of_what_ran_out():
    assert training(32, point(32, 500), point(32, 800, ran_out="training")) == (500, 500)


def test_gradients_may_come_on_top_where_several_batches_make_a_step():
    one, several = point(8, 100), point(8, 140, accumulated=True)
    assert training(8, several, one, accumulated=True) == (140, 140)
    assert training(8, one, accumulated=True) == (100, 150)
    # What was measured with one batch size holds for others.
    assert training(4, several, one, point(2, 40), accumulated=True) == (60, 100)
    assert training(8, several) == (90, 140)


def test_an_evaluation_has_a_line_of_its_own():
    points = Point(8, 500, 64, 90), Point(8, 500, 32, 60), Point(8, 500)
    found = Profile(points).evaluating(48)
    assert found is not None
    assert found.planned == 75
    assert Profile((Point(8, 500),)).evaluating(48) is None


def test_rates_are_the_newest_by_batch():
    points = (
        point(8, 1, samples_per_second=10.0),
        point(8, 1, samples_per_second=99.0),
        point(64, 1, samples_per_second=70.0),
    )
    assert Profile(points).rates == {8: 10.0, 64: 70.0}
