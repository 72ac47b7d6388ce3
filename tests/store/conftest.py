"""The same store tests on SQLite and on a PostgreSQL server that the session starts itself."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Connection

from app.planning.requirements import SlotOffer
from app.settings import Settings, load_settings
from app.store import Store
from app.store.engine import clock, migrate
from app.store.engine.database import Database
from app.store.identity import this_process
from app.store.records import Lease, NewRun, RunRecord
from app.store.tables import database_identity, metadata
from app.store.worker_records import NewWorker
from tests.store.server import PostgresServer

CPU = SlotOffer("cpu-0-0", "cpu", "cpu")


@dataclass
class Clock(clock.Clock):
    """Unix seconds that pass only when a test says so, here and in the database."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def of(self, connection: Connection) -> float:
        return self.now


@dataclass
class World:
    """A fresh store with a dataset and a worker, and short ways to do what tests begin with."""

    settings: Settings
    database: Database
    clock: Clock = field(default_factory=Clock)
    store: Store = field(init=False)
    worker: int = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(self.database, self.clock)
        self.store.datasets.register("weather", "weather.h5")
        self.worker = self.register_worker()

    def register_worker(self, name: str = "agent", beat_seconds: float | None = None) -> int:
        me = this_process()
        process = (me.host, me.boot_id, me.pid, me.start_time)
        new = NewWorker(name, *process, "0.1", beat_seconds=beat_seconds)
        return self.store.workers.register(new)

    def submit(self, **changes: object) -> RunRecord:
        return self.store.runs.create(new_run(**changes))[0]

    def claim(self, *slots: SlotOffer) -> Lease | None:
        return self.store.leases.claim(self.worker, slots or (CPU,))

    def running(self, **changes: object) -> Lease:
        run = self.submit(**changes)
        lease = self.claim()
        assert lease is not None
        assert lease.run_id == run.id
        return lease


def new_run(**changes: object) -> NewRun:
    spec = {
        "name": "lstm",
        "recipe": {"kind": "sequence"},
        "data": {"dataset": "weather", "split": {"method": "chronological"}},
        "checkpoint": {"monitor": "val_loss", "mode": "min"},
    }
    given = {
        "request": {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}},
        "spec": spec,
        "provenance": {"/training/epochs": {"value": 5, "source": "default"}},
        "issues": [],
        "name": "lstm",
        "notes": "",
        "labels": {},
        "priority": 0,
        "recipe": "sequence",
        "mode": "train",
        "dataset": "weather",
        "device": "auto",
        "gpus": 1,
        "max_retries": 3,
        **changes,
    }
    return NewRun(**given)  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """A home, and the URL of an empty database."""
    home = tmp_path / "home"
    if kind == "sqlite":
        return load_settings(home=home)
    return load_settings(home=home, database_url=request.getfixturevalue("postgres").new_database())


@pytest.fixture
def world(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A fresh store; its database was upgraded once in this session, then copied or emptied."""
    home = tmp_path / "home"
    home.mkdir()
    if kind == "sqlite":
        database = request.getfixturevalue("sqlite_in")(home)
        yield World(load_settings(home=home), database)
    else:
        url, database = request.getfixturevalue("upgraded_postgres")
        _empty(database)
        yield World(load_settings(home=home, database_url=url), database)


@pytest.fixture
def store(world: World) -> Store:
    return world.store


@pytest.fixture(scope="session")
def upgraded_postgres(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Database]]:
    """The URL of a database with the current schema, and its connections; for one test after the
    other, since to connect and to compile statements anew takes longer than most of them."""
    url = postgres.new_database()
    settings = load_settings(home=tmp_path_factory.mktemp("template"), database_url=url)
    migrate.upgrade(settings)
    with closing(Database(settings)) as database:
        yield url, database


def _empty(database: Database) -> None:
    """Empty every table but the database's identity, and begin ids anew; much faster than another
    database, and than TRUNCATE, which makes new files."""
    tables = [table for table in metadata.tables.values() if table is not database_identity]
    counted = [table.name for table in tables if table.autoincrement_column is not None]
    statements = [
        "SET LOCAL session_replication_role = replica",  # in any order, whatever refers to what
        *(str(table.delete()) for table in tables),
        "UPDATE database_identity SET root_marked_at = NULL",
        *(f"SELECT setval('{name}_id_seq', 1, false)" for name in counted),
    ]
    with database.write() as connection:
        connection.exec_driver_sql("; ".join(statements))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this session."""
    server = PostgresServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
