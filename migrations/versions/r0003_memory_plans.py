"""The memory plan of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_documents", sa.Column("memory", sa.JSON()))


def downgrade() -> None:
    op.drop_column("run_documents", "memory")
