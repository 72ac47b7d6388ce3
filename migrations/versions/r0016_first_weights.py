"""The run or checkpoint that a run takes its first weights from, and runs by their names."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import FIXED
from migrations.protection_0010 import NEEDS, look_at

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

BEFORE = (*FIXED, *NEEDS, "created_by", "recipe_version")
# As the key of runs is.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COLUMNS = ("init_from_run", "init_from_checkpoint")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("runs", sa.Column(name, ID))
        has_one = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"ix_runs_{name}", "runs", [name], sqlite_where=has_one, postgresql_where=has_one
        )
    op.create_index("ix_runs_name_id", "runs", ["name", "id"])
    look_at((*BEFORE, *COLUMNS))


def downgrade() -> None:
    look_at(BEFORE)
    op.drop_index("ix_runs_name_id", "runs")
    for name in COLUMNS:
        op.drop_index(f"ix_runs_{name}", "runs")
        op.drop_column("runs", name)
