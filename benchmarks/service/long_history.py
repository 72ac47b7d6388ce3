"""A long history: copies of a run that has ended, made by the database itself."""

from typing import Any

from sqlalchemy import (
    CTE,
    Connection,
    String,
    Table,
    case,
    cast,
    func,
    insert,
    literal,
    null,
    select,
    true,
)

from app.store import Store
from app.store.tables import (
    attempts,
    run_datasets,
    run_documents,
    run_labels,
    runs,
)

AT_ONCE = 50_000  # so that the write-ahead log stays small
SECONDS_APART = 30.0
LABELS = 10  # values that the label `sweep` has, so that each fills a page of a short history
NEWEST_WITH_DOCUMENTS = 10_000  # of 7 KB each, which no list looks at


def add_copies(store: Store, run_id: int, total: int) -> None:
    """Until there are `total` runs: of 100 copies 90 are as the run is, 8 failed, 2 stopped."""
    while (first := _last(store) + 1) <= total:
        last = min(first + AT_ONCE - 1, total)
        with store.database.write() as connection:
            _copy(connection, run_id, first, last, total)


def _last(store: Store) -> int:
    with store.database.read() as connection:
        return connection.execute(select(func.max(runs.c.id))).scalar_one() or 0


def _copy(connection: Connection, run_id: int, first: int, last: int, total: int) -> None:
    numbers = _numbers(first, last)
    i = numbers.c.i
    before = (total - i) * SECONDS_APART
    sweep = literal("s").concat(cast(i % LABELS, String))
    changed = {
        "id": i,
        "place": i,
        "name": literal("copy-").concat(cast(i, String)),
        "labels": func.json(literal('{"sweep": "').concat(sweep).concat('"}')),
        # Every tenth was restarted from the one before.
        "parent_id": case((i % 10 == 1, i - 1), else_=None),
        "state": case((i % 100 < 90, runs.c.state), (i % 100 < 98, "failed"), else_="stopped"),
        **{name: runs.c[name] - before for name in ("created_at", "started_at", "finished_at")},
    }
    _insert(connection, numbers, runs, run_id, changed)
    _insert(connection, numbers, run_datasets, run_id, {"run_id": i})
    _insert(connection, numbers, attempts, run_id, {"run_id": i, "applied": null()})
    if last > total - NEWEST_WITH_DOCUMENTS:
        _insert(connection, numbers, run_documents, run_id, {"run_id": i})
    label = {"run_id": i, "key": literal("sweep"), "value": sweep}
    connection.execute(insert(run_labels).from_select(list(label), select(*label.values())))


def _numbers(first: int, last: int) -> CTE:
    start = select(literal(first).label("i")).cte("numbers", recursive=True)
    return start.union_all(select(start.c.i + 1).where(start.c.i < last))


def _insert(
    connection: Connection, numbers: CTE, table: Table, run_id: int, changed: dict[str, Any]
) -> None:
    """A copy of each of the run's rows for each number."""
    key = table.c.id if table is runs else table.c.run_id
    values = {column.name: changed.get(column.name, column) for column in table.c}
    rows = select(*values.values()).select_from(table.join(numbers, true())).where(key == run_id)
    connection.execute(insert(table).from_select(list(values), rows))
