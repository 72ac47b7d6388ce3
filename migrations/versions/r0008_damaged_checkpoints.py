"""Why a checkpoint cannot be used."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("damage", sa.Text()))


def downgrade() -> None:
    op.drop_column("checkpoints", "damage")
