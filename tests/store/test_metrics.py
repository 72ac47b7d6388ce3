"""Metric points: thinning, superseded attempts, lineage, downsampling."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from app.lifecycle import Reason
from app.store.records import Beat, Finish, MetricPoint, Restart
from app.store.tables import metric_points
from app.store.telemetry import thinning
from app.store.telemetry.thinning import SeriesState, downsample, least_missed, thin
from tests.store.conftest import World, new_run


def points(name: str, *steps: int, value: float = 1.0, every: float = 1.0) -> list[MetricPoint]:
    return [MetricPoint(name, step, 1000.0 + step * every, value) for step in steps]


def steps_of(world: World, run_id: int, name: str = "train_loss", **more: bool) -> list[int]:
    series = world.store.metrics.series(run_id, None, None, **more)
    return [step for step, _, _ in series.get(name, [])]


def test_at_most_one_point_a_second_also_across_beats(world: World) -> None:
    lease = world.running()
    for start in (0, 25):
        news = points("train_loss", *range(start, start + 25), every=0.1)
        world.store.leases.beat(lease.token, Beat(metric_points=news))
    assert steps_of(world, lease.run_id) == [0, 10, 20, 30, 40]


def test_points_of_evaluations_are_all_kept(world: World) -> None:
    lease = world.running()
    news = points("val_mae", *range(20), every=0.01)
    world.store.leases.beat(lease.token, Beat(metric_points=news))
    assert steps_of(world, lease.run_id, "val_mae") == list(range(20))


def stored(world: World) -> int:
    with world.store.database.read() as connection:
        return connection.execute(select(func.count()).select_from(metric_points)).scalar_one()


@pytest.mark.parametrize("name", ["val_loss", "test_mae"])
def test_of_many_evaluations_the_older_half_is_thinned(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(thinning, "MAX_POINTS", 10)
    lease = world.running()
    for first in (0, 4, 8, 12):
        news = points(name, *range(first, first + 4), every=0.01)
        world.store.leases.beat(lease.token, Beat(metric_points=news))
    # Of 12 points 1, 3 and 5 went, then of 13 2, 6 and 8: however near they are in time.
    assert steps_of(world, lease.run_id, name) == [0, 4, 7, *range(9, 16)]


def test_points_whose_attempt_is_not_known_are_thinned_as_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `series` reads them: it does not ask for the attempt's row either."""
    monkeypatch.setattr(thinning, "MAX_POINTS", 10)
    lease = world.running()
    world.store.leases.beat(lease.token, Beat(metric_points=points("val_mae", *range(8))))
    with world.store.database.write() as connection:
        connection.execute(update(metric_points).values(attempt=0))
    world.store.leases.beat(lease.token, Beat(metric_points=points("val_mae", *range(8, 12))))
    assert len(steps_of(world, lease.run_id, "val_mae")) == stored(world) == 9


@pytest.mark.parametrize("beats", [1, 50])
def test_the_first_the_last_and_the_best_evaluation_stay_among_ten_thousand(
    world: World, beats: int
) -> None:
    lease, each = world.running(), 25_000 // beats
    for first in range(0, 25_000, each):
        news = [
            MetricPoint("val_loss", step, float(step), abs(step - 777) + 0.5)
            for step in range(first, first + each)
        ]
        world.store.leases.beat(lease.token, Beat(metric_points=news))
    assert 5_000 < stored(world) <= 10_000
    curve = world.store.metrics.series(lease.run_id, None, None)["val_loss"]
    assert (curve[0][0], curve[-1][0]) == (0, 24_999)
    assert min(curve, key=lambda point: point[2])[0] == 777
    newest = [step for step, _, _ in curve if step >= 22_500]
    assert newest == list(range(22_500, 25_000)), "the newest are all there"


def test_the_best_is_one_of_those_that_no_later_attempt_has_superseded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "MAX_POINTS", 10)
    lease = world.running()
    first = [MetricPoint("val_loss", step, 0.0, 9.0 - step) for step in range(9)]
    world.store.leases.beat(lease.token, Beat(metric_points=first))
    token, best = retry(world, lease.token), 3
    again = [MetricPoint("val_loss", step, 0.0, 8.0 + step) for step in range(4, 9)]
    news = Beat(resumed_from_step=best, metric_points=again)
    world.store.leases.beat(token, news)
    curve = world.store.metrics.series(lease.run_id, None, None)["val_loss"]
    assert min(curve, key=lambda point: point[2])[:1] == (best,)
    assert stored(world) <= 10


def test_of_a_curve_without_numbers_every_second_goes() -> None:
    assert least_missed([None] * 8) == [1, 3]
    assert least_missed([0.0, -1.0, 5.0, None, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]) == [3]


def test_a_point_that_is_to_be_kept_is_kept_however_near() -> None:
    news = [MetricPoint("lr", n, n / 100, 0.0, keep=n == 9) for n in range(10)]
    assert [point.step for point in thin(news, SeriesState())[0]] == [0, 9]


def test_a_clock_that_goes_back_does_not_end_a_curve() -> None:
    news = [MetricPoint("lr", 1, 100.0, 0.0), MetricPoint("lr", 2, 50.0, 0.0)]
    kept, state = thin(news, SeriesState())
    assert kept == news
    assert state == SeriesState(2, 1.0, 50.0)


def test_a_full_curve_is_halved_and_grows_half_as_fast(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "MAX_POINTS", 10)
    lease = world.running()
    world.store.leases.beat(lease.token, Beat(metric_points=points("train_loss", *range(11))))
    assert steps_of(world, lease.run_id) == [0, 2, 4, 6, 8, 10]
    world.store.leases.beat(lease.token, Beat(metric_points=points("train_loss", *range(11, 16))))
    assert steps_of(world, lease.run_id) == [0, 2, 4, 6, 8, 10, 12, 14]
    news = points("train_loss", *range(18, 24), every=2.0)
    world.store.leases.beat(lease.token, Beat(metric_points=news))
    assert steps_of(world, lease.run_id)[-2:] == [22, 23], "the last one stays"


def test_a_series_of_ten_thousand_is_the_most(world: World) -> None:
    lease = world.running()
    for start in range(0, 22_000, 5_500):
        news = points("train_loss", *range(start, start + 5_500))
        world.store.leases.beat(lease.token, Beat(metric_points=news))
    count = stored(world)
    assert 5_000 <= count <= 10_000
    found = steps_of(world, lease.run_id)
    assert (found[0], len(found)) == (0, count)
    assert found[-1] > 21_990


def test_values_that_are_not_finite_come_back_as_nan(world: World) -> None:
    lease = world.running()
    news = [*points("val_loss", 1, value=math.nan), *points("val_loss", 2, value=math.inf)]
    world.store.leases.beat(lease.token, Beat(metric_points=news))
    values = [value for _, _, value in world.store.metrics.series(lease.run_id)["val_loss"]]
    assert all(math.isnan(value) for value in values)
    assert len(values) == 2


def retry(world: World, token: str) -> str:
    world.store.leases.finish(token, Finish(Reason.drained, ""))
    lease = world.claim()
    assert lease is not None
    return lease.token


def test_a_later_attempt_wins_a_step(world: World) -> None:
    lease = world.running()
    world.store.leases.beat(lease.token, Beat(metric_points=points("val_loss", 1, 2, 3)))
    second = retry(world, lease.token)
    world.store.leases.beat(second, Beat(metric_points=points("val_loss", 2, value=9.0)))
    series = world.store.metrics.series(lease.run_id)["val_loss"]
    assert [(step, value) for step, _, value in series] == [(1, 1.0), (2, 9.0), (3, 1.0)]


def test_an_attempt_that_went_back_supersedes_what_came_after(world: World) -> None:
    lease = world.running()
    world.store.leases.beat(lease.token, Beat(metric_points=points("train_loss", 10, 20, 30, 40)))
    second = retry(world, lease.token)
    news = Beat(resumed_from_step=20, metric_points=points("train_loss", 25))
    world.store.leases.beat(second, news)
    assert steps_of(world, lease.run_id) == [10, 20, 25]


def child_of(world: World, run_id: int, kind: str, resumed_from: int, *steps: int) -> int:
    """A finished restart that went on from a step, with its own points."""
    world.store.runs.restart(Restart(run_id, "scratch", {"kind": kind}), new_run())
    lease = world.claim()
    assert lease is not None
    news = Beat(resumed_from_step=resumed_from, metric_points=points("train_loss", *steps))
    world.store.leases.finish(lease.token, Finish(Reason.completed, "", final=news))
    return lease.run_id


def test_lineage_puts_the_parents_before_up_to_the_restored_step(world: World) -> None:
    lease = world.running()
    news = Beat(metric_points=points("train_loss", 10, 20, 30, 40))
    world.store.leases.finish(lease.token, Finish(Reason.completed, "", final=news))
    child = child_of(world, lease.run_id, "full", 30, 31, 50, 60)
    grandchild = child_of(world, child, "full", 50, 55)
    assert steps_of(world, grandchild) == [55]
    assert steps_of(world, grandchild, lineage=True) == [10, 20, 30, 31, 50, 55]


def test_weights_alone_begin_a_new_curve(world: World) -> None:
    lease = world.running()
    news = Beat(metric_points=points("train_loss", 10))
    world.store.leases.finish(lease.token, Finish(Reason.completed, "", final=news))
    child = child_of(world, lease.run_id, "weights", 10, 1, 2)
    assert steps_of(world, child, lineage=True) == [1, 2]


def test_only_the_series_asked_for(world: World) -> None:
    lease = world.running()
    news = points("val_loss", 1) + points("val_mae", 1)
    world.store.leases.beat(lease.token, Beat(metric_points=news))
    assert set(world.store.metrics.series(lease.run_id, ["val_mae", "absent"])) == {"val_mae"}


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200),
    st.integers(min_value=2, max_value=60),
)
def test_downsampling_keeps_ends_order_and_extremes(values: list[float], most: int) -> None:
    curve = [(step, float(step), value) for step, value in enumerate(values)]
    found = downsample(curve, most)
    assert len(found) <= max(most, 2)
    assert [p[0] for p in found] == sorted({p[0] for p in found})
    if curve:
        assert (found[0], found[-1]) == (curve[0], curve[-1])
    finite = [value for value in values if math.isfinite(value)]
    if finite and most >= 4:
        kept = [value for _, _, value in found if math.isfinite(value)]
        assert (min(kept), max(kept)) == (min(finite), max(finite))
