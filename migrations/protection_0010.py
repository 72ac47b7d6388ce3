"""The trigger on runs from revision 10 on: what a run needs is fixed once the run is over."""

from collections.abc import Sequence

from alembic import op

from migrations.protection_0001 import FIXED, IS_TERMINAL, REFUSAL

# What revision 10 added.
NEEDS = (
    "needs_device_bytes", "needs_host_bytes", "needs_cpu_bytes", "needs_disk_bytes",
    "needs_capability", "spec_version",
)  # fmt: skip


def protect_needs() -> None:
    """Have the trigger look at the new columns too."""
    look_at((*FIXED, *NEEDS))


def unprotect_needs() -> None:
    """Have it look at those from before."""
    look_at(FIXED)


def look_at(fixed: Sequence[str]) -> None:
    """Have the trigger refuse changes of these columns, and of no others."""
    made = "CREATE TRIGGER runs_terminal_update BEFORE UPDATE ON runs"
    if op.get_bind().dialect.name == "sqlite":
        changed = " OR ".join(f"OLD.{name} IS NOT NEW.{name}" for name in fixed)
        op.execute("DROP TRIGGER runs_terminal_update")
        op.execute(
            f"{made} WHEN {IS_TERMINAL} AND ({changed}) BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
        )
        return
    changed = " OR ".join(f"OLD.{name}::text IS DISTINCT FROM NEW.{name}::text" for name in fixed)
    op.execute("DROP TRIGGER runs_terminal_update ON runs")
    op.execute(
        f"{made} FOR EACH ROW WHEN ({IS_TERMINAL} AND ({changed})) EXECUTE FUNCTION stoker_refuse()"
    )
