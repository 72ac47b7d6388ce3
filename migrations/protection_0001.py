"""Triggers of the first revision: a run that is over stays as it was, its documents always."""

from alembic import op

# A run that is over keeps these; what is not here may still be changed by its owner.
FIXED = (
    "id", "place", "recipe", "mode", "dataset", "device", "gpus", "max_retries", "accepted_risks",
    "state", "intent", "reason", "message", "parent_id", "waits_for", "restart_from",
    "restart_checkpoint_id", "restart_carry", "carry", "attempt", "worker_id", "worker", "devices",
    "environment", "lease_token", "beat",
    "retry_at", "retries_used", "losses", "phase", "progress", "progress_at", "result",
    "log_bytes", "created_at", "started_at", "finished_at",
)  # fmt: skip
IS_TERMINAL = "OLD.state IN ('succeeded', 'failed', 'stopped')"
REFUSAL = "a run that is over does not change"


def protect() -> None:
    """Create the triggers."""
    if op.get_bind().dialect.name == "sqlite":
        _protect_on_sqlite()
    else:
        _protect_on_postgresql()


def unprotect() -> None:
    """Drop what is left when the tables are gone with their triggers."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION stoker_refuse()")


def _protect_on_sqlite() -> None:
    changed = " OR ".join(f"OLD.{name} IS NOT NEW.{name}" for name in FIXED)
    refuse = f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
    op.execute(
        f"CREATE TRIGGER runs_terminal_update BEFORE UPDATE ON runs "
        f"WHEN {IS_TERMINAL} AND ({changed}) {refuse}"
    )
    op.execute(f"CREATE TRIGGER runs_delete BEFORE DELETE ON runs {refuse}")
    op.execute(f"CREATE TRIGGER run_documents_update BEFORE UPDATE ON run_documents {refuse}")


def _protect_on_postgresql() -> None:
    changed = " OR ".join(f"OLD.{name}::text IS DISTINCT FROM NEW.{name}::text" for name in FIXED)
    op.execute(
        "CREATE FUNCTION stoker_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}' USING ERRCODE = 'integrity_constraint_violation'; "
        "END $$"
    )
    refuse = "FOR EACH ROW EXECUTE FUNCTION stoker_refuse()"
    op.execute(
        f"CREATE TRIGGER runs_terminal_update BEFORE UPDATE ON runs "
        f"FOR EACH ROW WHEN ({IS_TERMINAL} AND ({changed})) EXECUTE FUNCTION stoker_refuse()"
    )
    op.execute(f"CREATE TRIGGER runs_delete BEFORE DELETE ON runs {refuse}")
    op.execute(f"CREATE TRIGGER run_documents_update BEFORE UPDATE ON run_documents {refuse}")
