"""Memory profiles: what runs and probes were measured to take, by what they agree in."""

from collections.abc import Collection
from dataclasses import asdict, fields

from sqlalchemy import Connection, and_, delete, func, insert, or_, select

from app.planning.profile import KEPT_POINTS, Measured, Point, Profile, ProfileKey
from app.store.engine.database import Database
from app.store.tables import memory_points

# Points that are kept of all keys together: the newest.
MOST_POINTS = 50_000
_KEY = tuple(memory_points.c[name] for name in ProfileKey._fields)
_POINT = tuple(memory_points.c[field.name] for field in fields(Point))


class MemoryProfiles:
    """Read by keys; written as runs and probes end, within their transactions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, keys: Collection[ProfileKey]) -> dict[ProfileKey, Profile]:
        """Those that are known of these keys."""
        if not keys:
            return {}
        any_of = or_(*(and_(*(c == v for c, v in zip(_KEY, key, strict=True))) for key in keys))
        query = select(*_KEY, *_POINT).where(any_of).order_by(memory_points.c.id.desc())
        found: dict[ProfileKey, list[Point]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query):
                key = ProfileKey(*row[: len(_KEY)])
                found.setdefault(key, []).append(Point(*row[len(_KEY) :]))
        return {key: Profile(tuple(points)) for key, points in found.items()}


def add_measured(
    connection: Connection, measured: Measured, run_id: int | None, worker: str, now: float
) -> None:
    """Keep what was measured, and forget the oldest of its key, and of all."""
    key = measured.key._asdict()
    told = {"run_id": run_id, "worker": worker, "measured_at": now}
    rows = [{**key, **asdict(point), **told} for point in measured.points]
    if not rows:
        return
    connection.execute(insert(memory_points), rows)
    same = and_(*(memory_points.c[name] == value for name, value in key.items()))
    newest = memory_points.c.id.desc()
    last = select(memory_points.c.id).where(same).order_by(newest).offset(KEPT_POINTS - 1).limit(1)
    connection.execute(
        delete(memory_points).where(same, memory_points.c.id < last.scalar_subquery())
    )
    # Ids rise with each point, so that nothing has to be counted.
    newest_id = select(func.max(memory_points.c.id)).scalar_subquery()
    connection.execute(delete(memory_points).where(memory_points.c.id <= newest_id - MOST_POINTS))
