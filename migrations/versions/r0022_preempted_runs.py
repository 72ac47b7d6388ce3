"""For which run of higher priority a run gives its slots back."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import FIXED
from migrations.protection_0010 import NEEDS, look_at

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
HAS_ONE = sa.text("preempted_for IS NOT NULL")
BEFORE = (
    *(*FIXED, *NEEDS, "created_by", "recipe_version"),
    *("init_from_run", "init_from_checkpoint", "owner_host", "owner_uid", "submission"),
)


def upgrade() -> None:
    op.add_column("attempts", sa.Column("preempted_for", Id))
    op.add_column("runs", sa.Column("preempted_for", Id))
    op.create_index(
        "ix_runs_preempted_for",
        "runs",
        ["preempted_for"],
        sqlite_where=HAS_ONE,
        postgresql_where=HAS_ONE,
    )
    look_at((*BEFORE, "preempted_for"))


def downgrade() -> None:
    look_at(BEFORE)
    op.drop_index("ix_runs_preempted_for", "runs")
    op.drop_column("runs", "preempted_for")
    op.drop_column("attempts", "preempted_for")
