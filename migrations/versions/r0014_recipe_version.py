"""Which version of its recipe a run needs; a worker that has another leaves it in the queue."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import FIXED
from migrations.protection_0010 import NEEDS, look_at

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Of runs from before it is not known: null, which any worker meets.
    op.add_column("runs", sa.Column("recipe_version", sa.Text()))
    look_at((*FIXED, *NEEDS, "created_by", "recipe_version"))


def downgrade() -> None:
    look_at((*FIXED, *NEEDS, "created_by"))
    op.drop_column("runs", "recipe_version")
