"""How many runs ended how is counted over an index; rows of counts made transactions deadlock."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

IS_OVER = sa.text("finished_at IS NOT NULL")


def upgrade() -> None:
    op.create_index(
        "ix_runs_state_reason_deleted_at",
        "runs",
        ["state", "reason", "deleted_at"],
        sqlite_where=IS_OVER,
        postgresql_where=IS_OVER,
    )
    op.drop_table("run_tallies")


def downgrade() -> None:
    op.create_table(
        "run_tallies",
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=False),
        sa.Column("deleted", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("state", "reason", name="pk_run_tallies"),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO run_tallies (state, reason, ended, deleted) "
        "SELECT state, reason, count(*), count(deleted_at) FROM runs "
        "WHERE finished_at IS NOT NULL GROUP BY state, reason"
    )
    op.drop_index("ix_runs_state_reason_deleted_at", "runs")
