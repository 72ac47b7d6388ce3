"""Datasets: registered by name, inspected by a worker's job."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, select, update

from app.errors import Conflict, InvalidRequest, NotFound
from app.store.engine.clock import Clock
from app.store.engine.cursor import page_by_id
from app.store.engine.database import Database, retried
from app.store.engine.dialect import insert_unless_there
from app.store.jobs import add_job
from app.store.records import DatasetRecord, Document, NewRun, StoredPage
from app.store.tables import ACTIVE_VALUES, datasets, jobs, run_datasets, runs

FOUND = ("fields", "samples", "layout", "size_bytes", "fingerprint", "read_probe", "message")
_NAMED = select(datasets).where(datasets.c.name == bindparam("name"))
_MARK = select(func.count(), func.max(datasets.c.id), func.max(datasets.c.updated_at))
_ALL_NAMED = select(datasets).where(datasets.c.name.in_(bindparam("names", expanding=True)))
# Held, so that none is forgotten before the run that reads it is there.
_HELD = (
    select(datasets.c.name)
    .where(datasets.c.name.in_(bindparam("names", expanding=True)))
    .order_by(datasets.c.id)
    .with_for_update(read=True, key_share=True)
)


class Datasets:
    """Registers datasets, lists and forgets them; jobs write what inspections find."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @retried
    def register(self, name: str, path: str) -> tuple[DatasetRecord, bool]:
        """Name a file below DATA_ROOT and have it inspected; (dataset, whether the name is new).

        A known name is inspected again, since the file may have changed; another path for it is a
        Conflict while a run that is not over uses it.
        """
        with self._database.write(ring=True) as connection:
            now = self._clock()
            row = {"name": name, "created_at": now, **_uninspected(path, now)}
            created = insert_unless_there(connection, datasets, row)
            known = connection.execute(_NAMED.with_for_update(), {"name": name}).one()
            if known.path != path:
                _require_unused(connection, name, path, known)
            if known.path != path or not _will_be_inspected(connection, known.inspection_id):
                payload = {"name": name, "path": path}
                job_id = add_job(connection, "inspect_dataset", payload, now)
                connection.execute(
                    update(datasets)
                    .where(datasets.c.id == known.id)
                    .values(**_uninspected(path, now), inspection_id=job_id)
                )
            return record_of(connection.execute(_NAMED, {"name": name}).one()), created

    @retried
    def forget(self, name: str) -> None:
        """Delete the entry, never the file. NotFound; Conflict while the record of a run names it:
        one that was deleted has none.
        """
        with self._database.write() as connection:
            if connection.execute(_NAMED.with_for_update(), {"name": name}).one_or_none() is None:
                raise _missing(name)
            run_id = connection.execute(_reader(name)).scalar()
            if run_id is not None:
                raise Conflict(
                    f"Run {run_id} reads the dataset {name!r}, or did, and its record names it: it "
                    "stays. Register another file under another name.",
                    code="dataset_in_use",
                )
            connection.execute(delete(datasets).where(datasets.c.name == name))

    def others_since(self, run_id: int) -> frozenset[str]:
        """Names of datasets that have another file by now than the run trained on.

        A run that has not trained goes by what the one trained on whose state it was to carry on.
        """
        with self._database.read() as connection:
            return other_data(connection, run_id)

    def get(self, name: str) -> DatasetRecord:
        """NotFound when there is none of that name."""
        with self._database.read() as connection:
            row = connection.execute(_NAMED, {"name": name}).one_or_none()
        if row is None:
            raise _missing(name)
        return record_of(row)

    def mark(self) -> tuple[Any, ...]:
        """Changes with whatever is known of any of them."""
        with self._database.read() as connection:
            return tuple(connection.execute(_MARK).one())

    def named(self, names: Collection[str]) -> dict[str, DatasetRecord]:
        """Those of these names that there are."""
        with self._database.read() as connection:
            rows = connection.execute(_ALL_NAMED, {"names": sorted(names)})
            return {row.name: record_of(row) for row in rows}

    def list(self, limit: int, after: str | None = None) -> StoredPage[DatasetRecord]:
        """Newest first; `after` is the cursor of the page before."""
        with self._database.read() as connection:
            return page_by_id(connection, select(datasets), datasets.c.id, limit, after, record_of)


def record_of(row: Row[Any], **changes: Any) -> DatasetRecord:
    """The record of a row of datasets, which may have other columns too."""
    known = {name: getattr(row, name) for name in DatasetRecord.__dataclass_fields__}
    return DatasetRecord(**{**known, **changes})


def datasets_of(new: NewRun) -> set[str]:
    """The names of all datasets that a run reads."""
    own = set() if new.dataset is None else {new.dataset}
    return own | _split_datasets(new.spec)


def require_datasets(connection: Connection, names: set[str]) -> None:
    """Hold datasets until the transaction ends. InvalidRequest when one is not there."""
    if not names:
        return
    known = connection.execute(_HELD, {"names": list(names)}).scalars()
    missing = names.difference(known)
    if missing:
        raise InvalidRequest(
            f"There is no dataset {min(missing)!r}. Register it first: stoker data register.",
            code="dataset_unknown",
        )


def pin_datasets(connection: Connection, run_id: int) -> dict[str, DatasetRecord]:
    """The datasets of a run by name, each with the fingerprint that its first attempt saw.

    So a later attempt finds out when the data has changed, whatever was registered meanwhile.
    """
    now = select(datasets.c.fingerprint).where(datasets.c.name == run_datasets.c.name)
    of_run = run_datasets.c.run_id == run_id
    connection.execute(
        update(run_datasets)
        .where(of_run, run_datasets.c.fingerprint.is_(None))
        .values(fingerprint=now.scalar_subquery())
    )
    return pinned_datasets(connection, run_id)


def pinned_datasets(connection: Connection, run_id: int) -> dict[str, DatasetRecord]:
    """As `pin_datasets` has left them."""
    pinned = select(datasets, run_datasets.c.fingerprint.label("pinned")).join(
        run_datasets, run_datasets.c.name == datasets.c.name
    )
    rows = connection.execute(pinned.where(run_datasets.c.run_id == run_id))
    return {row.name: record_of(row, fingerprint=row.pinned) for row in rows}


def other_data(connection: Connection, run_id: int) -> frozenset[str]:
    """See Datasets.others_since."""
    seen = _seen_by(connection, run_id)
    named = datasets.c.name.in_(seen)
    now = connection.execute(select(datasets.c.name, datasets.c.fingerprint).where(named))
    return frozenset(row.name for row in now if _differ(seen[row.name], row.fingerprint))


def _seen_by(connection: Connection, run_id: int | None) -> dict[str, Document]:
    """The fingerprints that the run's first attempt saw, or those of the run it carries on."""
    while run_id is not None:
        rows = connection.execute(
            select(run_datasets.c.name, run_datasets.c.fingerprint).where(
                run_datasets.c.run_id == run_id, run_datasets.c.fingerprint.is_not(None)
            )
        )
        if seen := {row.name: row.fingerprint for row in rows}:
            return seen
        run = connection.execute(select(runs.c.parent_id, runs.c.carry).where(runs.c.id == run_id))
        parent_id, carry = run.one()
        run_id = parent_id if (carry or {}).get("kind") == "full" else None
    return {}


def _differ(seen: Document, now: Document | None) -> bool:
    """By what is in them: a file that was copied back has another time and is the same."""
    return now is not None and any(seen.get(key) != now.get(key) for key in ("size", "sha256"))


def _split_datasets(spec: Document) -> set[str]:
    split = (spec.get("data") or {}).get("split") or {}
    return {split[part] for part in ("validation", "test") if isinstance(split.get(part), str)}


def _reader(name: str) -> Select[tuple[int]]:
    """A run that reads a dataset, or did; without an index, since this is seldom asked."""
    return select(run_datasets.c.run_id).where(run_datasets.c.name == name).limit(1)


def _uninspected(path: str, now: float) -> Document:
    nothing = dict.fromkeys(FOUND)
    return {**nothing, "path": path, "state": "inspecting", "problems": [], "updated_at": now}


def _require_unused(connection: Connection, name: str, path: str, known: Row[Any]) -> None:
    user = (
        select(runs.c.id)
        .join(run_datasets, run_datasets.c.run_id == runs.c.id)
        .where(runs.c.state.in_(ACTIVE_VALUES), run_datasets.c.name == name)
        .limit(1)
    )
    run_id = connection.execute(user).scalar()
    if run_id is not None:
        raise Conflict(
            f"The dataset {name!r} is {known.path}, and run {run_id}, which is not over, uses it. "
            f"Register {path} under another name, or wait for the run.",
            code="dataset_in_use",
        )


def _will_be_inspected(connection: Connection, job_id: int | None) -> bool:
    """Whether the inspection has yet to begin; one under way may have read what was before."""
    state = connection.execute(select(jobs.c.state).where(jobs.c.id == job_id)).scalar()
    return state == "queued"


def _missing(name: str) -> NotFound:
    return NotFound(
        f"There is no dataset {name!r}. `stoker data ls` shows those there are, and `stoker data "
        "register` adds one."
    )
