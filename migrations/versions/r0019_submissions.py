"""Under which key it is kept what came with a command: its environment, the copy of its code."""

import sqlalchemy as sa
from alembic import op

from migrations.protection_0001 import FIXED
from migrations.protection_0010 import NEEDS, look_at

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

BEFORE = (
    *(*FIXED, *NEEDS, "created_by", "recipe_version"),
    *("init_from_run", "init_from_checkpoint", "owner_host", "owner_uid"),
)
HAS_ONE = sa.text("submission IS NOT NULL")


def upgrade() -> None:
    op.add_column("runs", sa.Column("submission", sa.Text()))
    _fill_in()
    op.create_index(
        "ix_runs_submission",
        "runs",
        ["submission"],
        sqlite_where=HAS_ONE,
        postgresql_where=HAS_ONE,
    )
    look_at((*BEFORE, "submission"))


def _fill_in() -> None:
    """Of commands from before: their specs name the key."""
    runs = sa.table("runs", *(sa.column(name) for name in ("id", "recipe", "submission")))
    documents = sa.table(
        "run_documents", sa.column("run_id"), sa.column("spec", sa.JSON(none_as_null=True))
    )
    scripts = sa.select(runs.c.id, documents.c.spec).where(
        runs.c.id == documents.c.run_id, runs.c.recipe == "script"
    )
    connection = op.get_bind()
    for run_id, spec in connection.execute(scripts).all():
        key = spec["recipe"].get("environment")
        connection.execute(sa.update(runs).where(runs.c.id == run_id).values(submission=key))


def downgrade() -> None:
    look_at(BEFORE)
    op.drop_index("ix_runs_submission", "runs")
    op.drop_column("runs", "submission")
