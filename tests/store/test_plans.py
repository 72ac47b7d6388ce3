"""Query plans: what is asked often reads an index, however long the history."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, insert, text

from app.guard.facts import DeviceFacts
from app.lifecycle import RunState
from app.store.history import likeness_of
from app.store.records import RunFilter
from app.store.tables import runs

from .conftest import CPU, World

HISTORY = 20_000
LIKE = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}


@pytest.fixture
def old_world(world: World) -> World:
    """A long history of ended runs, as few columns as will do."""
    row = {
        "name": "old", "notes": "", "labels": {}, "priority": 0, "recipe": "sequence",
        "mode": "train", "dataset": "weather", "device": "auto", "gpus": 1, "max_retries": 3,
        "accepted_risks": [], "state": "succeeded", "intent": "run", "reason": "completed",
        "version": 3, "attempt": 1, "devices": [], "beat": 9, "retries_used": 0, "losses": 0,
        "last_event_seq": 4, "log_bytes": 0, "created_at": 1.0, "progress_at": 1.0,
        "likeness": likeness_of(LIKE),
    }  # fmt: skip
    with world.store.database.write() as connection:
        connection.execute(insert(runs), [{**row, "place": i} for i in range(HISTORY)])
        if connection.dialect.name == "postgresql":  # as autovacuum does; SQLite has none here
            connection.execute(text("ANALYZE"))
    return world


@contextmanager
def statements(world: World) -> Iterator[list[tuple[str, Any]]]:
    """The statements that the store sends meanwhile, with their parameters."""
    found: list[tuple[str, Any]] = []

    def note(_c: Any, _u: Any, statement: str, parameters: Any, *_: Any) -> None:
        found.append((statement, parameters))

    engine = world.store.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def full_scans(world: World, sent: list[tuple[str, Any]]) -> list[str]:
    """Plans of SELECTs that read the whole table of runs."""
    is_sqlite = world.store.database.is_sqlite
    explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
    scan = r"SCAN (runs|parent)(?! USING)" if is_sqlite else r"Seq Scan on runs"
    bad = []
    with world.store.database.read() as connection:
        for statement, parameters in sent:
            if not statement.startswith("SELECT") or "runs" not in statement:
                continue
            rows = connection.exec_driver_sql(explain + statement, parameters)
            plan = "\n".join(str(row) for row in rows)
            if re.search(scan, plan):
                bad.append(f"{statement}\n{plan}")
    return bad


def test_lists_claims_and_counts_read_indexes(old_world: World) -> None:
    store = old_world.store
    run = old_world.submit(labels={"team": "sky"})
    with statements(old_world) as sent:
        store.runs.list(RunFilter(), 50, str(HISTORY // 2))
        store.runs.list(RunFilter(state=RunState.failed), 50)
        store.runs.list(RunFilter(recipe="molecule"), 50)
        store.runs.list(RunFilter(parent_id=3), 50)
        store.runs.list(RunFilter(status="retrying"), 50)
        store.runs.queue()
        assert store.runs.counts_by_state() == {"queued": 1}  # the old ones never ended here
        store.runs.finished_counts()
        store.runs.next_queue_position(0)
        store.runs.watch_marks([run.id])
        store.leases.holders()
        assert store.history.like(LIKE, DeviceFacts("cpu", "cpu")) is None
        store.workers.pulses()
        lease = store.leases.claim(old_world.worker, [CPU])
    assert lease is not None
    assert len(sent) > 14
    assert full_scans(old_world, sent) == []


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_the_first_page_ends_when_it_is_full(old_world: World) -> None:
    """Newest first is the order of the key: SQLite stops after the page, without a sort."""
    with statements(old_world) as sent:
        old_world.store.runs.list(RunFilter(), 50)
    with old_world.store.database.read() as connection:
        plan = str(connection.exec_driver_sql("EXPLAIN QUERY PLAN " + sent[0][0], sent[0][1]).all())
    assert "TEMP B-TREE" not in plan
