"""The row of a deleted run keeps no dataset from being forgotten."""

from alembic import op

from migrations.rebuilding import rebuilt

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with rebuilt("runs") as runs:
        runs.drop_constraint("fk_runs_dataset", type_="foreignkey")


def downgrade() -> None:
    # Deleted runs may name datasets that are forgotten: each gets an entry that says so again.
    op.execute(
        "INSERT INTO datasets (name, path, state, problems, message, created_at, updated_at) "
        "SELECT dataset, dataset, 'invalid', '[]', 'It was forgotten.', min(created_at), "
        "min(created_at) FROM runs WHERE dataset NOT IN (SELECT name FROM datasets) "
        "GROUP BY dataset"
    )
    with rebuilt("runs") as runs:
        runs.create_foreign_key("fk_runs_dataset", "datasets", ["dataset"], ["name"])
