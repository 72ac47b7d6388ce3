"""The home that took a command; null: any home of its user on its host may run it."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import FIXED
from migrations.protection_0010 import NEEDS, look_at

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

BEFORE = (
    *(*FIXED, *NEEDS, "created_by", "recipe_version", "init_from_run", "init_from_checkpoint"),
    *("owner_host", "owner_uid", "submission", "preempted_for"),
)


def upgrade() -> None:
    op.add_column("runs", sa.Column("owner_home", sa.Text()))
    look_at((*BEFORE, "owner_home"))


def downgrade() -> None:
    look_at(BEFORE)
    op.drop_column("runs", "owner_home")
