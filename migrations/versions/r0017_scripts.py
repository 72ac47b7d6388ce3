"""Runs of scripts: without a dataset, of an owner, with the code as it was submitted."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import FIXED
from migrations.protection_0010 import NEEDS, look_at
from migrations.rebuilding import rebuilt

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

BEFORE = (
    *(*FIXED, *NEEDS, "created_by", "recipe_version"),
    *("init_from_run", "init_from_checkpoint"),
)


def upgrade() -> None:
    with rebuilt("runs") as runs:
        runs.alter_column("dataset", existing_type=sa.Text(), nullable=True)
        runs.add_column(sa.Column("owner_host", sa.Text()))
        runs.add_column(sa.Column("owner_uid", sa.Integer()))
    op.add_column("run_documents", sa.Column("code", sa.JSON(none_as_null=True)))
    look_at((*BEFORE, "owner_host", "owner_uid"))


def downgrade() -> None:
    look_at(BEFORE)
    op.drop_column("run_documents", "code")
    with rebuilt("runs") as runs:
        runs.drop_column("owner_uid")
        runs.drop_column("owner_host")
