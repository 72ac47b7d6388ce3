"""The first tables, and the triggers that keep what is over as it was."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import protect, unprotect

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

TABLES = (
    "datasets",
    "tokens",
    "workers",
    "jobs",
    "runs",
    "attempts",
    "checkpoints",
    "events",
    "idempotency_keys",
    "log_pieces",
    "metric_points",
    "metric_series",
    "run_datasets",
    "run_documents",
    "run_labels",
    "run_tallies",
)


def upgrade() -> None:
    _create_datasets()
    _create_tokens()
    _create_workers()
    _create_jobs()
    _create_runs()
    _index_runs()
    _create_attempts()
    _create_checkpoints()
    _create_events()
    _create_idempotency_keys()
    _create_log_pieces()
    _create_metric_points()
    _create_metric_series()
    _create_run_datasets()
    _create_run_documents()
    _create_run_labels()
    _create_run_tallies()
    protect()


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
    unprotect()


def _create_datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("fields", sa.JSON()),
        sa.Column("samples", sa.BigInteger()),
        sa.Column("layout", sa.JSON()),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("fingerprint", sa.JSON()),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.Column("read_probe", sa.JSON()),
        sa.Column("message", sa.Text()),
        sa.Column("inspection_id", ID),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
        sa.UniqueConstraint("name", name="uq_datasets_name"),
        sqlite_autoincrement=True,
    )


def _create_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("secret_hash", name="uq_tokens_secret_hash"),
        sqlite_autoincrement=True,
    )


def _create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("start_time", sa.Double(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("slots", sa.JSON(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_workers_state", "workers", ["state"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker_id", ID),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_jobs_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"])


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("dataset", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("max_retries", sa.Integer(), nullable=False),
        sa.Column("accepted_risks", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("intent", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("message", sa.Text()),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parent_id", ID),
        sa.Column("waits_for", ID),
        sa.Column("restart_from", sa.Text()),
        sa.Column("restart_checkpoint_id", ID),
        sa.Column("restart_carry", sa.Text()),
        sa.Column("carry", sa.JSON()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", ID),
        sa.Column("worker", sa.Text()),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON()),
        sa.Column("lease_token", sa.Text()),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("retry_at", sa.Double()),
        sa.Column("retries_used", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text()),
        sa.Column("progress", sa.JSON()),
        sa.Column("progress_at", sa.Double()),
        sa.Column("result", sa.JSON()),
        sa.Column("diagnosis", sa.JSON()),
        sa.Column("last_event_seq", sa.Integer(), nullable=False),
        sa.Column("log_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("deleted_at", sa.Double()),
        sa.ForeignKeyConstraint(["dataset"], ["datasets.name"], name="fk_runs_dataset"),
        sa.ForeignKeyConstraint(["parent_id"], ["runs.id"], name="fk_runs_parent_id"),
        sa.ForeignKeyConstraint(["waits_for"], ["runs.id"], name="fk_runs_waits_for"),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_runs_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("lease_token", name="uq_runs_lease_token"),
        sqlite_autoincrement=True,
    )


def _index_runs() -> None:
    op.create_index(
        "ix_runs_claim",
        "runs",
        ["state", sa.literal_column("priority DESC"), "place", "id"],
        unique=False,
    )
    for column in ("parent_id", "waits_for", "restart_checkpoint_id", "worker_id"):
        has_one = sa.column(column).is_not(None)
        op.create_index(
            f"ix_runs_{column}", "runs", [column], sqlite_where=has_one, postgresql_where=has_one
        )
    op.create_index("ix_runs_recipe_id", "runs", ["recipe", "id"])
    op.create_index("ix_runs_started_at", "runs", ["started_at"])
    op.create_index("ix_runs_state_id", "runs", ["state", "id"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("message", sa.Text()),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("applied", sa.JSON()),
        sa.Column("environment", sa.JSON()),
        sa.Column("resumed_from_step", sa.BigInteger()),
        sa.Column("saved_checkpoints", sa.Integer(), nullable=False),
        sa.Column("log_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_attempts_run_id"),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_attempts"),
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("score", sa.Double()),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_checkpoints_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
        sa.UniqueConstraint("path", name="uq_checkpoints_path"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_checkpoints_run_id_step", "checkpoints", ["run_id", "step"])


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("t", sa.Double(), nullable=False),
        sa.Column("attempt", sa.Integer()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_events_run_id"),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_events"),
    )


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.Column("run_id", ID),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_idempotency_keys_run_id"),
        sa.PrimaryKeyConstraint("scope", "key", name="pk_idempotency_keys"),
    )
    for column in ("created_at", "run_id"):
        op.create_index(f"ix_idempotency_keys_{column}", "idempotency_keys", [column])


def _create_log_pieces() -> None:
    op.create_table(
        "log_pieces",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_log_pieces_run_id"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "start", name="pk_log_pieces"),
    )


def _create_metric_points() -> None:
    op.create_table(
        "metric_points",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("t", sa.Double(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_metric_points_run_id"),
        sa.PrimaryKeyConstraint("run_id", "name", "step", "attempt", name="pk_metric_points"),
        sqlite_with_rowid=False,
    )


def _create_metric_series() -> None:
    op.create_table(
        "metric_series",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("points", sa.Integer(), nullable=False),
        sa.Column("gap_seconds", sa.Double(), nullable=False),
        sa.Column("last_t", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_metric_series_run_id"),
        sa.PrimaryKeyConstraint("run_id", "name", name="pk_metric_series"),
        sqlite_with_rowid=False,
    )


def _create_run_datasets() -> None:
    op.create_table(
        "run_datasets",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.JSON()),
        sa.ForeignKeyConstraint(["name"], ["datasets.name"], name="fk_run_datasets_name"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_datasets_run_id"),
        sa.PrimaryKeyConstraint("run_id", "name", name="pk_run_datasets"),
        sqlite_with_rowid=False,
    )


def _create_run_documents() -> None:
    op.create_table(
        "run_documents",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("issues", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_documents_run_id"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_documents"),
    )


def _create_run_labels() -> None:
    op.create_table(
        "run_labels",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_labels_run_id"),
        sa.PrimaryKeyConstraint("run_id", "key", name="pk_run_labels"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_labels_key_run_id", "run_labels", ["key", "run_id"])
    op.create_index("ix_run_labels_key_value_run_id", "run_labels", ["key", "value", "run_id"])


def _create_run_tallies() -> None:
    op.create_table(
        "run_tallies",
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=False),
        sa.Column("deleted", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("state", "reason", name="pk_run_tallies"),
        sqlite_with_rowid=False,
    )
