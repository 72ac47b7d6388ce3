"""The store: one object with an attribute for each kind of thing that it keeps."""

from sqlalchemy import text

from app.settings import Settings
from app.store.checkpoints import Checkpoints
from app.store.datasets import Datasets
from app.store.engine.clock import Clock
from app.store.engine.database import BUSY_TIMEOUT_SECONDS, Database
from app.store.engine.migrate import head_revision, revision_of
from app.store.jobs import Jobs
from app.store.notifications import Notifications
from app.store.runs.attempts import Attempts
from app.store.runs.events import Events
from app.store.runs.history import History
from app.store.runs.leases import Leases
from app.store.runs.runs import Runs
from app.store.telemetry.logs import Logs
from app.store.telemetry.memory_profiles import MemoryProfiles
from app.store.telemetry.metrics import Metrics
from app.store.tokens import Tokens
from app.store.weights.exports import Exports
from app.store.workers import Workers


class Store:
    """All of it over one database. Thread-safe; every method is a short transaction.

    Any method may raise Unavailable when the database cannot be reached.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        clock = clock or Clock()
        self.database = database
        self.runs = Runs(database, clock)
        self.leases = Leases(database, clock)
        self.attempts = Attempts(database)
        self.events = Events(database)
        self.metrics = Metrics(database)
        self.history = History(database)
        self.profiles = MemoryProfiles(database)
        self.logs = Logs(database)
        self.checkpoints = Checkpoints(database, clock)
        self.exports = Exports(database, clock)
        self.datasets = Datasets(database, clock)
        self.jobs = Jobs(database, clock)
        self.notifications = Notifications(database, clock)
        self.workers = Workers(database, clock)
        self.tokens = Tokens(database, clock)

    def ping(self) -> None:
        """Unavailable when the database does not answer."""
        with self.database.read() as connection:
            connection.execute(text("SELECT 1"))

    def schema_is_current(self) -> bool:
        """Whether the database has exactly the schema of this code."""
        with self.database.read() as connection:
            return revision_of(connection) == head_revision()

    def close(self) -> None:
        self.database.close()


def open_store(
    settings: Settings, clock: Clock | None = None, busy_seconds: float = BUSY_TIMEOUT_SECONDS
) -> Store:
    """The store of these settings; nothing is created or upgraded (see migrate.upgrade)."""
    return Store(Database(settings, busy_seconds), clock)
