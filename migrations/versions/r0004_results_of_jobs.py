"""What a job found, for who asked for it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("result", sa.JSON()))


def downgrade() -> None:
    # A worker of the version before does not know this kind.
    op.execute("DELETE FROM jobs WHERE kind = 'probe_step'")
    op.drop_column("jobs", "result")
