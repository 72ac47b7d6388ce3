"""Query plans: what is asked often reads an index, however long the history."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, insert, text

from app.lifecycle import RunState
from app.store.records import RunFilter
from app.store.runs.history import likeness_of
from app.store.tables import run_labels, runs
from tests.store.conftest import CPU, World

HISTORY = 20_000
LABELS = 100  # values that the label `sweep` has
PIECE = 1_000  # a transaction that a busy server ends within the time limit of the store
# What a list asks for, and the index that SQLite finds it by; None: the key of the table.
SEARCHES = (
    (RunFilter(), None),
    (RunFilter(q="new"), None),
    (RunFilter(state=RunState.failed), "ix_runs_state_id"),
    (RunFilter(state=RunState.succeeded, q="new"), "ix_runs_state_id"),
    (RunFilter(statuses=("starting",)), "ix_runs_state_id"),
    (RunFilter(statuses=("retrying",), recipe="sequence"), "ix_runs_state_id"),
    (RunFilter(statuses=("succeeded",), label="sweep=s7"), "ix_run_labels_key_value_run_id"),
    (RunFilter(recipe="molecule"), "ix_runs_recipe_id"),
    (RunFilter(recipe="molecule", q="new"), "ix_runs_recipe_id"),
    (RunFilter(label="sweep"), "ix_run_labels_key_run_id"),
    (RunFilter(label="sweep=s7"), "ix_run_labels_key_value_run_id"),
    (RunFilter(label="sweep=s7", recipe="sequence"), "ix_run_labels_key_value_run_id"),
    (RunFilter(dataset="tides"), "ix_runs_dataset_id"),
    (RunFilter(created_by="ada"), "ix_runs_created_by_id"),
    (RunFilter(created_by="ada", recipe="sequence"), "ix_runs_created_by_id"),
    (RunFilter(statuses=("failed", "stopped")), None),
    (RunFilter(parent_id=3), "ix_runs_parent_id"),
    (RunFilter(parent_id=3, state=RunState.succeeded, label="sweep"), "ix_runs_parent_id"),
)
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
    for begin in range(0, HISTORY, PIECE):
        numbers = range(begin, min(begin + PIECE, HISTORY))
        labels = [{"run_id": i + 1, "key": "sweep", "value": f"s{i % LABELS}"} for i in numbers]
        with world.store.database.write() as connection:
            connection.execute(insert(runs), [{**row, "place": i} for i in numbers])
            connection.execute(insert(run_labels), labels)
    if not world.store.database.is_sqlite:  # as autovacuum does; SQLite has none here
        with world.store.database.write() as connection:
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
        store.runs.list(RunFilter(statuses=("retrying",)), 50)
        store.runs.queue()
        assert store.runs.counts_by_state() == {"queued": 1}  # the old ones never ended here
        store.runs.finished_counts()
        store.runs.next_queue_position(0)
        store.runs.watch_marks([run.id])
        store.leases.holders()
        store.leases.scripts_at("box")
        store.runs.gone(["0" * 32])
        assert store.history.like(LIKE, "cpu", "cpu") is None
        store.workers.pulses()
        lease = store.leases.claim(old_world.worker, [CPU])
    assert lease is not None
    assert len(sent) > 14
    assert full_scans(old_world, sent) == []


def test_every_list_reads_a_page_by_one_index(old_world: World) -> None:
    """In the order of the index: no sort, and nothing else that is read for all that match."""
    store = old_world.store
    for wanted, index in SEARCHES:
        for after in (None, str(HISTORY // 2)):
            with statements(old_world) as sent:
                store.runs.list(wanted, 50, after)
            assert full_scans(old_world, sent) == [], wanted
            if store.database.is_sqlite:
                for plan in plans(old_world, sent):
                    assert "TEMP B-TREE" not in plan, (wanted, plan)
                    first = plan.splitlines()[0]
                    assert ("PRIMARY KEY" in first) if index is None else (index in first), plan


def plans(world: World, sent: list[tuple[str, Any]]) -> Iterator[str]:
    """Of the statements that find the runs of a page, and where it ends."""
    with world.store.database.read() as connection:
        for statement, parameters in sent:
            if "ORDER BY" in statement and "LIMIT" in statement:
                rows = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters)
                yield "\n".join(row.detail for row in rows)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_what_ended_long_ago_is_found_by_an_index(old_world: World) -> None:
    with statements(old_world) as sent:
        old_world.store.runs.ended_before(5.0)
    assert full_scans(old_world, sent) == []
