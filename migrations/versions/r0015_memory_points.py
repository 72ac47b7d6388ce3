"""What runs and probes were measured to take of memory, to plan the next ones by."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # A restored backup from before this revision may lie beside the table of the database that it
    # replaces: what was measured holds on, and runs like those are planned by it.
    op.create_table(
        "memory_points",
        sa.Column("id", Id, nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("recipe_version", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("training_bytes", sa.BigInteger()),
        sa.Column("evaluation_batch_size", sa.Integer(), nullable=False),
        sa.Column("evaluation_bytes", sa.BigInteger()),
        sa.Column("host_bytes", sa.BigInteger()),
        sa.Column("accumulated", sa.Boolean(), nullable=False),
        sa.Column("ran_out", sa.Text()),
        sa.Column("parameters", sa.BigInteger()),
        sa.Column("samples_per_second", sa.Double()),
        sa.Column("torch", sa.Text()),
        sa.Column("run_id", Id),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_memory_points"),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    columns = ["shape", "runtime", "device", "id"]
    op.create_index(
        "ix_memory_points_shape_runtime_device_id", "memory_points", columns, if_not_exists=True
    )


def downgrade() -> None:
    op.drop_table("memory_points")
