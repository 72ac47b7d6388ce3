"""What goes when a run is deleted, and what keeps it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, delete, exists, func, or_, select, update

from app.errors import ActionNotAllowed, Conflict
from app.lifecycle import TERMINAL, Intent, RunState, allowed_actions
from app.store.checkpoint_rows import SAVED
from app.store.jobs import add_job
from app.store.runs.rows import lock
from app.store.tables import (
    TERMINAL_VALUES,
    checkpoints,
    events,
    exports,
    idempotency_keys,
    log_pieces,
    metric_points,
    metric_series,
    run_datasets,
    run_documents,
    run_labels,
    runs,
)


def remove_run(
    connection: Connection, run_id: int, now: float, if_version: int | None = None
) -> None:
    """Delete a run that is over, but for its artifacts. Refused, before anything is changed, with
    NotFound, PreconditionFailed, ActionNotAllowed or Conflict.
    """
    run = lock(connection, run_id, if_version)
    if run.state not in TERMINAL:
        allowed = allowed_actions(RunState(run.state), Intent(run.intent))
        raise ActionNotAllowed(
            f"Run {run_id} is {run.state}; only a run that is over can be deleted. Stop it first.",
            allowed_actions=allowed,
        )
    # A restart of a restart may be choosing one of these: it is either seen, or sees.
    connection.execute(_checkpoints_of(run_id).with_for_update()).all()
    child = connection.execute(_child_in_need(run_id)).scalar()
    if child is not None:
        raise Conflict(
            f"Run {child} goes on from a checkpoint of run {run_id}, or begins with its weights, "
            "and has saved nothing of its own yet. Wait for it, or stop it, then delete run "
            f"{run_id}.",
            code="needed_by_child",
        )
    _erase(connection, run_id)
    connection.execute(
        update(runs).where(runs.c.id == run_id).values(deleted_at=now, version=runs.c.version + 1)
    )


def order_removal(connection: Connection, run_ids: Sequence[int], now: float) -> None:
    """Have a worker remove the artifacts of deleted runs."""
    if run_ids:
        paths = [f"runs/{run_id}" for run_id in run_ids]
        payload = {"run_id": run_ids[0], "paths": paths, "checkpoint_id": None}
        add_job(connection, "remove_artifacts", payload, now)


def wholly_deleted(submissions: Sequence[str]) -> Select[Any]:
    """Of these keys those that runs have, all of which were deleted."""
    key = runs.c.submission
    are_all = func.count() == func.count(runs.c.deleted_at)
    return select(key).where(key.in_(submissions)).group_by(key).having(are_all)


def _checkpoints_of(run_id: int) -> Select[tuple[int]]:
    return select(checkpoints.c.id).where(checkpoints.c.run_id == run_id)


def _child_in_need(run_id: int) -> Select[Any]:
    """One that is not over, restores from this run's checkpoints and has none of its own."""
    of_run = _checkpoints_of(run_id)
    is_of_it = or_(
        runs.c.parent_id == run_id,
        runs.c.waits_for == run_id,
        runs.c.restart_checkpoint_id.in_(of_run),
    )
    own = exists().where(checkpoints.c.run_id == runs.c.id, checkpoints.c.state == SAVED)
    return (
        select(runs.c.id)
        .where(
            or_(
                and_(is_of_it, runs.c.restart_from != "scratch"),
                runs.c.init_from_run == run_id,
            ),
            runs.c.state.not_in(TERMINAL_VALUES),
            ~own.correlate(runs),
        )
        .limit(1)
    )


def _erase(connection: Connection, run_id: int) -> None:
    """Delete what hangs on a run; its row and its attempts stay: its id stays taken."""
    for table in (
        metric_points,
        metric_series,
        log_pieces,
        events,
        checkpoints,
        exports,
        run_datasets,
        run_documents,
        run_labels,
        idempotency_keys,
    ):
        connection.execute(delete(table).where(table.c.run_id == run_id))
