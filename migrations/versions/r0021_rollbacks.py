"""To which step the attempts after one whose loss was not finite go back, and past which."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("rollback", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("attempts", "rollback")
