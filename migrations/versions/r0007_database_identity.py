"""An id of the database's own, by which the folder with its artifacts is known."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # It may be there: a restored backup from before this revision keeps the id of the database
    # that it replaces, whose artifacts it goes on with.
    op.create_table(
        "database_identity",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("root_marked_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_database_identity"),
        if_not_exists=True,
    )
    identity = sa.table("database_identity", sa.column("id", sa.Text()))
    connection = op.get_bind()
    if connection.execute(sa.select(identity.c.id)).first() is None:
        connection.execute(sa.insert(identity).values(id=str(uuid.uuid4())))


def downgrade() -> None:
    op.drop_table("database_identity")
