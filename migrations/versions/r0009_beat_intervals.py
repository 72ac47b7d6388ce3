"""How often a worker beats, so that others know when it is silent."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("beat_seconds", sa.Double()))


def downgrade() -> None:
    op.drop_column("workers", "beat_seconds")
