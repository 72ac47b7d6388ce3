"""The tables, as the newest migration leaves them."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    desc,
    literal_column,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from app.lifecycle import RunState


class PlainText(TypeDecorator[str]):
    """Text as both databases can hold it: NUL and lone surrogates become U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return storable(value)


# What JSON cannot say becomes null, see app.plainjson; order of keys is kept.
Document = JSON(none_as_null=True)


def storable(text: str) -> str:
    """The text without NUL and lone surrogates."""
    return (
        text.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    )


# SQLite gives automatic ids to INTEGER alone.
Id: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *parts: Any) -> Table:
    return Table(name, metadata, *parts, sqlite_autoincrement=True)


def _narrow(name: str, *parts: Any) -> Table:
    """A table of small rows, clustered by its key: one run's rows lie together."""
    return Table(name, metadata, *parts, sqlite_with_rowid=False)


def _wide(name: str, *parts: Any) -> Table:
    """A table of rows too big to be clustered well."""
    return Table(name, metadata, *parts)


def _run_key() -> Column[int]:
    return Column("run_id", Id, ForeignKey("runs.id"), primary_key=True)


def _id() -> Column[int]:
    return Column("id", Id, primary_key=True)


datasets = _table(
    "datasets",
    _id(),
    Column("name", PlainText, nullable=False, unique=True),
    Column("path", PlainText, nullable=False),
    Column("state", Text, nullable=False),
    Column("fields", Document),
    Column("samples", BigInteger),
    Column("layout", Document),
    Column("size_bytes", BigInteger),
    Column("fingerprint", Document),
    Column("problems", Document, nullable=False),
    Column("read_probe", Document),
    Column("message", PlainText),
    # The job whose finding counts; without a foreign key, since old jobs are forgotten.
    Column("inspection_id", Id),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

workers = _table(
    "workers",
    _id(),
    Column("name", PlainText, nullable=False),
    Column("host", PlainText, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("start_time", Double, nullable=False),
    Column("version", Text, nullable=False),
    # How often it beats, which tells others when it is silent; null: it has not said so.
    Column("beat_seconds", Double),
    Column("state", Text, nullable=False, index=True),
    Column("beat", BigInteger, nullable=False),
    Column("slots", Document, nullable=False),
    Column("devices", Document, nullable=False),
    Column("facts", Document, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
)

runs = _table(
    "runs",
    _id(),
    Column("name", PlainText, nullable=False),
    Column("notes", PlainText, nullable=False),
    Column("labels", Document, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("recipe", Text, nullable=False),
    Column("mode", Text, nullable=False),
    # No foreign key: a deleted run's row stays and keeps no dataset; run_datasets has the key.
    Column("dataset", PlainText, nullable=False),
    Column("device", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    # What it needs of a place, see planning/requirements.py; null: not known, any place will do.
    Column("needs_device_bytes", BigInteger),
    Column("needs_capability", Integer),
    Column("needs_host_bytes", BigInteger),
    Column("needs_cpu_bytes", BigInteger),
    Column("needs_disk_bytes", BigInteger),
    # What its worker has to understand.
    Column("spec_version", Integer, nullable=False, server_default="1"),
    Column("max_retries", Integer, nullable=False),
    Column("accepted_risks", Document, nullable=False),
    Column("state", Text, nullable=False),
    Column("intent", Text, nullable=False),
    Column("reason", Text),
    Column("message", PlainText),
    Column("version", Integer, nullable=False),
    Column("parent_id", Id, ForeignKey("runs.id")),
    # Must be over before this run starts: the parent, or the one that the parent waited for.
    Column("waits_for", Id, ForeignKey("runs.id")),
    Column("restart_from", Text),
    # No foreign key: the row of a removed checkpoint goes, its number stays in the history.
    Column("restart_checkpoint_id", Id),
    # What is carried from that checkpoint, and what the specs of parent and child would allow.
    Column("restart_carry", Text),
    Column("carry", Document),
    Column("attempt", Integer, nullable=False),
    # Who holds the lease; `worker`, its name, stays when the run is over.
    Column("worker_id", Id, ForeignKey("workers.id")),
    Column("worker", PlainText),
    Column("devices", Document, nullable=False),
    Column("environment", Document),
    Column("lease_token", Text, unique=True),
    Column("beat", BigInteger, nullable=False),
    Column("retry_at", Double),
    Column("retries_used", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("phase", Text),
    Column("progress", Document),
    Column("progress_at", Double),
    Column("result", Document),
    Column("diagnosis", Document),
    Column("last_event_seq", Integer, nullable=False),
    Column("log_bytes", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("created_by", PlainText),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("deleted_at", Double),
    # The same in runs that take the same time for a step, see history.py.
    Column("likeness", Text),
    Index(None, "state", "id"),
    Index(None, "recipe", "id"),
    Index(None, "dataset", "id"),
    Index(None, "created_by", "id"),
    Index(None, "created_at", "id"),
)
for _column in (
    runs.c.parent_id,
    runs.c.waits_for,
    runs.c.restart_checkpoint_id,
    runs.c.worker_id,
):
    # Without the many rows that have none: small, and known to be selective.
    _has_one = _column.is_not(None)
    Index(None, _column, sqlite_where=_has_one, postgresql_where=_has_one)
Index(None, runs.c.started_at)
_is_there = runs.c.deleted_at.is_(None)
Index(None, runs.c.finished_at, sqlite_where=_is_there, postgresql_where=_is_there)
# How many ended so, and how many of these were deleted, is counted in the index alone.
_is_over = runs.c.finished_at.is_not(None)
Index(
    None,
    runs.c.state,
    runs.c.reason,
    runs.c.deleted_at,
    sqlite_where=_is_over,
    postgresql_where=_is_over,
)
# Of those that were ever claimed, which is written in the statement as it is here: only then a
# database uses the index.
has_begun = runs.c.attempt > literal_column("0")
Index(None, runs.c.likeness, runs.c.id, sqlite_where=has_begun, postgresql_where=has_begun)
Index("ix_runs_claim", runs.c.state, desc(runs.c.priority), runs.c.place, runs.c.id)

# A run's big documents, never changed; apart, so that lists and beats do not touch them.
run_documents = _wide(
    "run_documents",
    _run_key(),
    Column("request", Document, nullable=False),
    Column("spec", Document, nullable=False),
    Column("provenance", Document, nullable=False),
    Column("issues", Document, nullable=False),
    # The memory plan; null where it could not be made.
    Column("memory", Document),
    # What gives the model its shape, see guard/carry.py; null where it was not known.
    Column("shape", Document),
)

# What a run reads, and what it looked like at the first claim. Without an index by name: those who
# use a dataset are looked for among the active runs, which are few.
run_datasets = _narrow(
    "run_datasets",
    _run_key(),
    Column("name", PlainText, ForeignKey("datasets.name"), primary_key=True),
    Column("fingerprint", Document),
)

run_labels = _narrow(
    "run_labels",
    _run_key(),
    Column("key", PlainText, primary_key=True),
    Column("value", PlainText, nullable=False),
    Index(None, "key", "value", "run_id"),
    Index(None, "key", "run_id"),
)

attempts = _wide(
    "attempts",
    _run_key(),
    Column("number", Integer, primary_key=True),
    Column("worker", PlainText, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("message", PlainText),
    Column("devices", Document, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("exit_code", Integer),
    Column("applied", Document),
    Column("environment", Document),
    Column("resumed_from_step", BigInteger),
    # What those after it use in place of the spec's values, since this one ran out of memory.
    Column("next_rung", Document),
    Column("saved_checkpoints", Integer, nullable=False),
    Column("log_bytes", BigInteger, nullable=False),
)

events = _wide(
    "events",
    _run_key(),
    Column("seq", Integer, primary_key=True),
    Column("t", Double, nullable=False),
    Column("attempt", Integer),
    Column("kind", Text, nullable=False),
    Column("data", Document, nullable=False),
)

# What thinning needs to know about a curve; see thinning.py.
metric_series = _narrow(
    "metric_series",
    _run_key(),
    Column("name", Text, primary_key=True),
    Column("points", Integer, nullable=False),
    Column("gap_seconds", Double, nullable=False),
    Column("last_t", Double, nullable=False),
)

metric_points = _narrow(
    "metric_points",
    _run_key(),
    Column("name", Text, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("t", Double, nullable=False),
    Column("value", Double),
)

log_pieces = _wide(
    "log_pieces",
    _run_key(),
    Column("attempt", Integer, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("end", BigInteger, nullable=False),
    Column("text", PlainText, nullable=False),
)

checkpoints = _table(
    "checkpoints",
    _id(),
    Column("run_id", Id, ForeignKey("runs.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("path", PlainText, nullable=False, unique=True),
    Column("bytes", BigInteger, nullable=False),
    Column("metrics", Document, nullable=False),
    # The monitored metric, negated where more is better: the best has the lowest.
    Column("score", Double),
    Column("pinned", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("damage", PlainText),
    Column("created_at", Double, nullable=False),
    Index(None, "run_id", "step"),
)

jobs = _table(
    "jobs",
    _id(),
    Column("kind", Text, nullable=False),
    Column("payload", Document, nullable=False),
    Column("state", Text, nullable=False),
    Column("error", PlainText),
    Column("attempts", Integer, nullable=False),
    # Who has it; while it is queued, the only one who may take it.
    Column("worker_id", Id, ForeignKey("workers.id")),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("retry_at", Double),  # one that failed waits until then
    Column("result", Document),
    Index(None, "state", "id"),
)

tokens = _table(
    "tokens",
    _id(),
    Column("name", PlainText, nullable=False),
    Column("secret_hash", Text, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)

idempotency_keys = _wide(
    "idempotency_keys",
    Column("scope", PlainText, primary_key=True),
    Column("key", PlainText, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("run_id", Id, ForeignKey("runs.id"), index=True),
    Column("created_at", Double, nullable=False, index=True),
)

# One row: the database's own id, which the artifact root carries too; see artifact_root.py.
database_identity = _wide(
    "database_identity",
    Column("id", Text, primary_key=True),
    # When a root was first marked with it: from then on a root without the marker is not the one.
    Column("root_marked_at", Double),
)

# What may still change in a run that is over; a trigger refuses every other column. Its likeness
# follows from its spec, and a newer version may see likeness elsewhere.
CHANGEABLE_WHEN_TERMINAL = frozenset(
    {"name", "notes", "labels", "priority", "diagnosis", "version", "last_event_seq", "deleted_at",
     "likeness"}
)  # fmt: skip
TERMINAL_VALUES = tuple(
    state.value for state in (RunState.succeeded, RunState.failed, RunState.stopped)
)
ACTIVE_VALUES = tuple(state.value for state in RunState if state.value not in TERMINAL_VALUES)
