"""When a job that failed may be tried again."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("retry_at", sa.Double()))


def downgrade() -> None:
    op.drop_column("jobs", "retry_at")
