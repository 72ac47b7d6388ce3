"""Who made a run, and indexes for the filters of lists."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import FIXED
from migrations.protection_0010 import NEEDS, look_at

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

FILTERS = ("dataset", "created_by", "created_at")


def upgrade() -> None:
    # Of runs from before it is not known.
    op.add_column("runs", sa.Column("created_by", sa.Text()))
    for name in FILTERS:
        op.create_index(f"ix_runs_{name}_id", "runs", [name, "id"])
    look_at((*FIXED, *NEEDS, "created_by"))


def downgrade() -> None:
    look_at((*FIXED, *NEEDS))
    for name in FILTERS:
        op.drop_index(f"ix_runs_{name}_id", "runs")
    op.drop_column("runs", "created_by")
