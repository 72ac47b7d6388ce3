"""What was made of checkpoints for use elsewhere."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # A restored backup from before this revision may lie beside the table of the database that it
    # replaces, whose exports are of other runs; ids go on above theirs.
    op.create_table(
        "exports",
        sa.Column("id", Id, nullable=False),
        sa.Column("run_id", Id, nullable=False),
        sa.Column("checkpoint_id", Id, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_exports"),
        sa.UniqueConstraint("path", name="uq_exports_path"),
        sqlite_autoincrement=True,
        if_not_exists=True,
    )
    op.execute(sa.delete(sa.table("exports")))
    op.create_index("ix_exports_run_id_id", "exports", ["run_id", "id"], if_not_exists=True)


def downgrade() -> None:
    op.drop_table("exports")
