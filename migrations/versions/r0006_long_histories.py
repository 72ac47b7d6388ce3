"""Indexes for long histories: runs that take the same time for a step, and when runs ended."""

import sqlalchemy as sa
from alembic import op

from migrations.likeness_0006 import likeness_of

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

NEWEST = 1000
HAS_BEGUN = sa.text("attempt > 0")
IS_THERE = sa.text("deleted_at IS NULL")


def upgrade() -> None:
    op.add_column("runs", sa.Column("likeness", sa.Text()))
    op.create_index(
        "ix_runs_likeness_id",
        "runs",
        ["likeness", "id"],
        sqlite_where=HAS_BEGUN,
        postgresql_where=HAS_BEGUN,
    )
    op.create_index(
        "ix_runs_finished_at",
        "runs",
        ["finished_at"],
        sqlite_where=IS_THERE,
        postgresql_where=IS_THERE,
    )
    _fill_in()


def _fill_in() -> None:
    """Of the newest runs, so that what they have told is not lost."""
    runs = sa.table("runs", sa.column("id"), sa.column("likeness"))
    documents = sa.table("run_documents", sa.column("run_id"), sa.column("spec", sa.JSON()))
    newest = (
        sa.select(runs.c.id, documents.c.spec)
        .join(documents, documents.c.run_id == runs.c.id)
        .order_by(runs.c.id.desc())
        .limit(NEWEST)
    )
    connection = op.get_bind()
    for run_id, spec in connection.execute(newest).all():
        statement = sa.update(runs).where(runs.c.id == run_id)
        connection.execute(statement.values(likeness=likeness_of(spec)))


def downgrade() -> None:
    op.drop_index("ix_runs_finished_at", "runs")
    op.drop_index("ix_runs_likeness_id", "runs")
    op.drop_column("runs", "likeness")
