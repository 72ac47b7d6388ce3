"""What a run needs of a place, and the version of its spec, matched when it is claimed."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0010 import protect_needs, unprotect_needs

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NEEDS = ("needs_device_bytes", "needs_host_bytes", "needs_cpu_bytes", "needs_disk_bytes")


def upgrade() -> None:
    # Of runs from before nothing is known: null, which any place meets.
    for name in NEEDS:
        op.add_column("runs", sa.Column(name, sa.BigInteger()))
    op.add_column("runs", sa.Column("needs_capability", sa.Integer()))
    version = sa.Column("spec_version", sa.Integer(), nullable=False, server_default="1")
    op.add_column("runs", version)
    op.add_column("run_documents", sa.Column("shape", sa.JSON()))
    protect_needs()


def downgrade() -> None:
    unprotect_needs()
    op.drop_column("run_documents", "shape")
    for name in ("spec_version", "needs_capability", *NEEDS):
        op.drop_column("runs", name)
