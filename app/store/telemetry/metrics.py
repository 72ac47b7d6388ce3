"""Metric points: thinned when written; later attempts win when read; restarts know their past."""

import math
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, delete, select, tuple_

from app.store.engine.database import Database
from app.store.engine.dialect import upsert
from app.store.records import MetricPoint, MetricSeries
from app.store.tables import attempts, metric_points, metric_series, runs
from app.store.telemetry.thinning import SeriesState, downsample, is_evaluation, least_missed, thin

MAX_ANCESTORS = 100
# SQLite takes 32,766 variables a statement.
DELETED_AT_ONCE = 5_000


class Metrics:
    """Reads curves; points are written by the beats that bring them (`add_points`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def series(
        self,
        run_id: int,
        names: Sequence[str] | None = None,
        max_points: int | None = 1000,
        lineage: bool = False,
    ) -> MetricSeries:
        """Curves by name, at most `max_points` (2 or more; None: all) each, extremes kept.

        A point is superseded by a later attempt's at the same step, or by a later attempt that
        went on from before it. With `lineage`, the parents' curves up to the restored step come
        first, as long as the whole training state was carried.
        """
        with self._database.read() as connection:
            series = _read(connection, run_id, names, below=None)
            if lineage:
                _put_ancestors_before(connection, run_id, names, series)
        if max_points is None:
            return series
        return {name: downsample(points, max_points) for name, points in series.items()}


def _put_ancestors_before(
    connection: Connection, run_id: int, names: Sequence[str] | None, series: MetricSeries
) -> None:
    current, bound = run_id, math.inf
    for _ in range(MAX_ANCESTORS):
        link = connection.execute(
            select(runs.c.parent_id, runs.c.carry).where(runs.c.id == current)
        ).one_or_none()
        if link is None or link.parent_id is None or (link.carry or {}).get("kind") != "full":
            return
        restored = connection.execute(
            select(attempts.c.resumed_from_step)
            .where(attempts.c.run_id == current, attempts.c.resumed_from_step.is_not(None))
            .order_by(attempts.c.number)
            .limit(1)
        ).scalar()
        if restored is None:
            return
        bound, current = min(bound, restored), link.parent_id
        for name, points in _read(connection, current, names, below=bound).items():
            first = min((point[0] for point in series.get(name, ())), default=math.inf)
            before = [point for point in points if point[0] < first]
            series[name] = before + series.get(name, [])


def _read(
    connection: Connection, run_id: int, names: Sequence[str] | None, below: float | None
) -> MetricSeries:
    """A run's own curves, up to the step `below` (inclusive), each step once."""
    query = select(
        metric_points.c.name,
        metric_points.c.step,
        metric_points.c.attempt,
        metric_points.c.t,
        metric_points.c.value,
    ).where(metric_points.c.run_id == run_id)
    if names is not None:
        query = query.where(metric_points.c.name.in_(names))
    if below is not None:
        query = query.where(metric_points.c.step <= below)
    order = (metric_points.c.name, metric_points.c.step, metric_points.c.attempt)
    rows = connection.execute(query.order_by(*order))
    cut = _superseded_after(connection, run_id)
    series: MetricSeries = {}
    for name, step, attempt, t, value in rows:
        if step > cut.get(attempt, math.inf):
            continue
        points = series.setdefault(name, [])
        if points and points[-1][0] == step:
            points.pop()  # in the order of attempts: the later one wins
        points.append((step, t, math.nan if value is None else value))
    return series


def _superseded_after(connection: Connection, run_id: int) -> dict[int, float]:
    """By attempt: the step after which later attempts went over the same ground again."""
    rows = connection.execute(
        select(attempts.c.number, attempts.c.resumed_from_step)
        .where(attempts.c.run_id == run_id)
        .order_by(attempts.c.number.desc())
    )
    cut, bound = {}, math.inf
    for number, resumed_from in rows:
        cut[number] = bound
        if resumed_from is not None:
            bound = min(bound, resumed_from)
    return cut


def add_points(
    connection: Connection, run_id: int, attempt: int, points: Sequence[MetricPoint]
) -> None:
    """Thin and store the points of a beat."""
    if not points:
        return
    known = {
        row.name: SeriesState(row.points, row.gap_seconds, row.last_t)
        for row in connection.execute(select(metric_series).where(metric_series.c.run_id == run_id))
    }
    rows: list[dict[str, Any]] = []
    states: dict[str, SeriesState] = {}
    for name, group in groupby(sorted(points, key=attrgetter("name")), key=attrgetter("name")):
        kept, states[name] = thin(group, known.get(name, SeriesState()))
        rows += [_row(run_id, attempt, point) for point in kept]
    upsert(connection, metric_points, rows)
    for name in states:
        while states[name].is_full:
            states[name] = _with_fewer(connection, run_id, name, states[name])
    changed = [
        {
            "run_id": run_id,
            "name": name,
            "points": state.points,
            "gap_seconds": state.gap_seconds,
            "last_t": state.last_t,
        }
        for name, state in states.items()
        if state != known.get(name)
    ]
    upsert(connection, metric_series, changed)


def _row(run_id: int, attempt: int, point: MetricPoint) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "name": point.name,
        "step": point.step,
        "attempt": attempt,
        "t": point.t,
        "value": point.value if math.isfinite(point.value) else None,
    }


def _with_fewer(connection: Connection, run_id: int, name: str, state: SeriesState) -> SeriesState:
    """Delete every second point of a full curve, but not its last; from now on points come half as
    often. Those of an evaluation come when there is one: of these every second of the older half
    goes.
    """
    key = (metric_points.c.step, metric_points.c.attempt)
    of_series = (metric_points.c.run_id == run_id, metric_points.c.name == name)
    query = select(*key, metric_points.c.value).where(*of_series).order_by(*key)
    rows = connection.execute(query).all()
    keys, gap_seconds = [(step, attempt) for step, attempt, _ in rows], state.gap_seconds
    if is_evaluation(name):
        cut = _superseded_after(connection, run_id)
        seen = [
            value if step <= cut.get(attempt, math.inf) else None for step, attempt, value in rows
        ]
        surplus = [keys[place] for place in least_missed(seen)]
    else:
        surplus, gap_seconds = keys[1:-1:2], gap_seconds * 2
    for i in range(0, len(surplus), DELETED_AT_ONCE):
        some = surplus[i : i + DELETED_AT_ONCE]
        connection.execute(delete(metric_points).where(*of_series, tuple_(*key).in_(some)))
    return SeriesState(len(keys) - len(surplus), gap_seconds, state.last_t)
