"""Datasets: registered by name, inspected by a worker's job."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Row, exists, insert, select, update

from app.errors import Conflict, NotFound
from app.store.cursor import parse_cursor
from app.store.database import Database
from app.store.jobs import add_job
from app.store.records import DatasetRecord, Document, Inspection, Page
from app.store.tables import TERMINAL_VALUES, datasets, jobs, runs

FOUND = ("fields", "samples", "layout", "size_bytes", "fingerprint", "read_probe", "message")


class Datasets:
    """The aggregate."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def register(self, name: str, path: str) -> tuple[DatasetRecord, bool]:
        """Name a file below DATA_ROOT and have it inspected; (dataset, whether the name is new).

        A known name is inspected again, since the file may have changed; another path for it is a
        Conflict while a run that is not over uses it.
        """
        with self._database.write() as connection:
            now = self._clock()
            known = connection.execute(_by_name(name).with_for_update()).one_or_none()
            if known is None:
                row = _uninspected(path, now)
                connection.execute(insert(datasets), {"name": name, "created_at": now, **row})
            elif known.state != "inspecting" or known.path != path:
                _require_unused(connection, name, path, known)
                connection.execute(
                    update(datasets)
                    .where(datasets.c.id == known.id)
                    .values(_uninspected(path, now))
                )
            if known is None or not _is_being_inspected(connection, name, path):
                add_job(connection, "inspect_dataset", {"name": name, "path": path}, now)
            return record_of(connection.execute(_by_name(name)).one()), known is None

    def get(self, name: str) -> DatasetRecord:
        """NotFound when there is none of that name."""
        with self._database.read() as connection:
            row = connection.execute(_by_name(name)).one_or_none()
        if row is None:
            raise _missing(name)
        return record_of(row)

    def list(self, limit: int, after: str | None = None) -> Page[DatasetRecord]:
        """Newest first; `after` is the cursor of the page before."""
        query = select(datasets).order_by(datasets.c.id.desc())
        if after is not None:
            query = query.where(datasets.c.id < parse_cursor(after))
        with self._database.read() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        records = [record_of(row) for row in rows[:limit]]
        return Page(records, str(records[-1].id) if len(rows) > limit else None)

    def set_result(self, name: str, path: str, found: Inspection) -> DatasetRecord | None:
        """Store what an inspection of `path` found; None when the name has another path by now."""
        values = {key: getattr(found, key) for key in FOUND}
        statement = (
            update(datasets)
            .where(datasets.c.name == name, datasets.c.path == path)
            .values(
                **values,
                state=found.state,
                problems=list(found.problems),
                updated_at=self._clock(),
            )
            .returning(datasets)
        )
        with self._database.write() as connection:
            row = connection.execute(statement).one_or_none()
        return None if row is None else record_of(row)


def record_of(row: Row[Any]) -> DatasetRecord:
    return DatasetRecord(**row._asdict())


def _by_name(name: str) -> Any:
    return select(datasets).where(datasets.c.name == name)


def _uninspected(path: str, now: float) -> Document:
    nothing = dict.fromkeys(FOUND)
    return {**nothing, "path": path, "state": "inspecting", "problems": [], "updated_at": now}


def _require_unused(connection: Connection, name: str, path: str, known: Row[Any]) -> None:
    active = exists().where(runs.c.dataset == name, runs.c.state.not_in(TERMINAL_VALUES))
    if path != known.path and connection.execute(select(active)).scalar():
        raise Conflict(
            f"The dataset {name!r} is {known.path}, and a run that is not over uses it. Register "
            f"{path} under another name, or wait for the run.",
            code="dataset_in_use",
        )


def _is_being_inspected(connection: Connection, name: str, path: str) -> bool:
    wanted = {"name": name, "path": path}
    query = select(jobs.c.payload).where(
        jobs.c.kind == "inspect_dataset", jobs.c.state.in_(["queued", "running"])
    )
    return any(payload == wanted for payload in connection.execute(query).scalars())


def _missing(name: str) -> NotFound:
    return NotFound(f"There is no dataset {name!r}. `stoker data register` names one.")
