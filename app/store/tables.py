"""The tables, as the newest migration leaves them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    Text,
    desc,
    literal_column,
)

from app.lifecycle import TERMINAL, RunState
from app.planning.profile import ProfileKey
from app.store.columns import (
    Document,
    Id,
    PlainText,
    id_column,
    narrow_table,
    run_key,
    table,
    wide_table,
)
from app.store.columns import metadata as metadata

datasets = table(
    "datasets",
    id_column(),
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

workers = table(
    "workers",
    id_column(),
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

# Whose weights a run begins with, and which: of a run that it waits for, settled at the claim.
_FIRST_WEIGHTS = ("init_from_run", "init_from_checkpoint")
runs = table(
    "runs",
    id_column(),
    Column("name", PlainText, nullable=False),
    Column("notes", PlainText, nullable=False),
    Column("labels", Document, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("recipe", Text, nullable=False),
    Column("mode", Text, nullable=False),
    # No foreign key: a deleted run's row stays and keeps no dataset; run_datasets has the key.
    Column("dataset", PlainText),  # null: a script, which reads what it likes
    Column("device", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    # What it needs of a place, see planning/requirements.py; null: not known, any place will do.
    Column("needs_device_bytes", BigInteger),
    Column("needs_capability", Integer),
    Column("needs_host_bytes", BigInteger),
    Column("needs_cpu_bytes", BigInteger),
    Column("needs_disk_bytes", BigInteger),
    Column("spec_version", Integer, nullable=False, server_default="1"),  # its worker's at least
    Column("recipe_version", Text),
    # Who alone runs it; null: all. Without a home, as before there were ids of homes: any home of
    # that user on that host.
    *(Column("owner_host", Text), Column("owner_uid", Integer), Column("owner_home", Text)),
    # The key of a command's environment and of the copy of its code in its owner's home; a restart
    # has its parent's.
    Column("submission", Text),
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
    *(Column(name, Id) for name in _FIRST_WEIGHTS),
    Column("attempt", Integer, nullable=False),
    # Who holds the lease; `worker`, its name, stays when the run is over.
    Column("worker_id", Id, ForeignKey("workers.id")),
    Column("worker", PlainText),
    Column("devices", Document, nullable=False),
    Column("environment", Document),
    Column("lease_token", Text, unique=True),
    # The run of higher priority for which it gives its slots back, until it is claimed again.
    Column("preempted_for", Id),
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
    Index(None, "name", "id"),
)
_OF_FEW = (
    *("parent_id", "waits_for", "restart_checkpoint_id", "worker_id", "submission"),
    "preempted_for",
)
for _name in (*_OF_FEW, *_FIRST_WEIGHTS):
    # Without the many rows that have none: small, and known to be selective.
    _has_one = runs.c[_name].is_not(None)
    Index(None, runs.c[_name], sqlite_where=_has_one, postgresql_where=_has_one)
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
run_documents = wide_table(
    "run_documents",
    run_key(),
    Column("request", Document, nullable=False),
    Column("spec", Document, nullable=False),
    Column("provenance", Document, nullable=False),
    Column("issues", Document, nullable=False),
    # The memory plan; null where it could not be made.
    Column("memory", Document),
    # What gives the model its shape, see guard/carry.py; null where it was not known.
    Column("shape", Document),
    Column("code", Document),  # of a script, as it was when it was submitted
)

# What a run reads, and what it looked like at the first claim. Without an index by name: those who
# use a dataset are looked for among the active runs, which are few.
run_datasets = narrow_table(
    "run_datasets",
    run_key(),
    Column("name", PlainText, ForeignKey("datasets.name"), primary_key=True),
    Column("fingerprint", Document),
)

run_labels = narrow_table(
    "run_labels",
    run_key(),
    Column("key", PlainText, primary_key=True),
    Column("value", PlainText, nullable=False),
    Index(None, "key", "value", "run_id"),
    Index(None, "key", "run_id"),
)

attempts = wide_table(
    "attempts",
    run_key(),
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
    # To which step those after it go back, and past which, since its loss was not finite.
    Column("rollback", Document),
    Column("preempted_for", Id),
    Column("saved_checkpoints", Integer, nullable=False),
    Column("log_bytes", BigInteger, nullable=False),
    # Bytes of the attempt's files that beats have brought. NULL: an earlier version did not count.
    Column("log_read", BigInteger),
    Column("events_read", BigInteger),
)

events = wide_table(
    "events",
    run_key(),
    Column("seq", Integer, primary_key=True),
    Column("t", Double, nullable=False),
    Column("attempt", Integer),
    Column("kind", Text, nullable=False),
    Column("data", Document, nullable=False),
)

# What thinning needs to know about a curve; see thinning.py.
metric_series = narrow_table(
    "metric_series",
    run_key(),
    Column("name", Text, primary_key=True),
    Column("points", Integer, nullable=False),
    Column("gap_seconds", Double, nullable=False),
    Column("last_t", Double, nullable=False),
)

metric_points = narrow_table(
    "metric_points",
    run_key(),
    Column("name", Text, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("t", Double, nullable=False),
    Column("value", Double),
)

log_pieces = wide_table(
    "log_pieces",
    run_key(),
    Column("attempt", Integer, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("end", BigInteger, nullable=False),
    Column("text", PlainText, nullable=False),
)

checkpoints = table(
    "checkpoints",
    id_column(),
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

# What was made of checkpoints for use elsewhere. Without foreign keys: a checkpoint may go, and the
# export stays; and a backup from before this table can be put back.
exports = table(
    "exports",
    id_column(),
    Column("run_id", Id, nullable=False),
    Column("checkpoint_id", Id, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("format", Text, nullable=False),
    Column("path", PlainText, nullable=False, unique=True),
    Column("bytes", BigInteger, nullable=False),
    Column("facts", Document, nullable=False),  # what its manifest says of it
    Column("state", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Index(None, "run_id", "id"),
)

jobs = table(
    "jobs",
    id_column(),
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

memory_points = table(  # what runs and probes took, a row for each time: app.planning.profile
    "memory_points",
    id_column(),
    *(Column(name, PlainText, nullable=False) for name in (*ProfileKey._fields, "worker")),
    *(Column(f"{of}batch_size", Integer, nullable=False) for of in ("", "evaluation_")),
    Column("accumulated", Boolean, nullable=False),
    *(Column(f"{of}_bytes", BigInteger) for of in ("training", "evaluation", "host")),
    Column("parameters", BigInteger),
    Column("samples_per_second", Double),
    *(Column(name, PlainText) for name in ("ran_out", "torch")),
    Column("measured_at", Double, nullable=False),
    Column("run_id", Id),  # null: a probe; a run may be deleted, and its measurement stays
    Index(None, "shape", "runtime", "device", "id"),
)

# What is to be told of runs; see notifications.py.
notifications = table(
    "notifications",
    id_column(),
    Column("kind", Text, nullable=False),
    Column("run_id", Id),
    Column("attempt", Integer),
    Column("reason", Text),
    Column("message", PlainText),
    Column("t", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("retry_at", Double),  # whoever tries now has it until then
    Column("error", PlainText),  # of the last try
    Column("ended_at", Double),  # sent, or given up with that error
    Index(None, "run_id", "attempt", "kind", unique=True),
)
_is_open = notifications.c.ended_at.is_(None)
Index(None, notifications.c.t, sqlite_where=_is_open, postgresql_where=_is_open)

tokens = table(
    "tokens",
    id_column(),
    Column("name", PlainText, nullable=False),
    Column("secret_hash", Text, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)

idempotency_keys = wide_table(
    "idempotency_keys",
    Column("scope", PlainText, primary_key=True),
    Column("key", PlainText, primary_key=True),
    Column("body_hash", Text, nullable=False),
    Column("run_id", Id, ForeignKey("runs.id"), index=True),
    Column("created_at", Double, nullable=False, index=True),
)

# One row: the database's own id, which the artifact root carries too; see artifact_root.py.
database_identity = wide_table(
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
TERMINAL_VALUES = tuple(state.value for state in RunState if state in TERMINAL)
ACTIVE_VALUES = tuple(state.value for state in RunState if state not in TERMINAL)
