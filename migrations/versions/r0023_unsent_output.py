"""Counts the sent bytes of an attempt's files; the next agent sends the rest."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("log_read", sa.BigInteger()))
    op.add_column("attempts", sa.Column("events_read", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("attempts", "events_read")
    op.drop_column("attempts", "log_read")
