"""What is to be told of runs, until somebody has been told."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # A restored backup from before this revision may lie beside the table of the database that it
    # replaces: what nobody was told of yet is told.
    op.create_table(
        "notifications",
        sa.Column("id", Id, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("run_id", Id),  # no foreign key: a backup that is put back knows no such table
        sa.Column("attempt", sa.Integer()),
        sa.Column("reason", sa.Text()),
        sa.Column("message", sa.Text()),
        sa.Column("t", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.Double()),
        sa.Column("error", sa.Text()),
        sa.Column("ended_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.create_index(
        "ix_notifications_run_id_attempt_kind",
        "notifications",
        ["run_id", "attempt", "kind"],
        unique=True,
        if_not_exists=True,
    )
    is_open = sa.text("ended_at IS NULL")
    op.create_index(
        "ix_notifications_t",
        "notifications",
        ["t"],
        sqlite_where=is_open,
        postgresql_where=is_open,
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("notifications")
