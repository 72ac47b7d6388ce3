"""What the attempts after one that ran out of memory use in place of the spec's values."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("next_rung", sa.JSON()))


def downgrade() -> None:
    op.drop_column("attempts", "next_rung")
