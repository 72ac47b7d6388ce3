"""What is forgotten after a week: in small steps, where more of the same is written."""

from sqlalchemy import Connection, delete, exists, select, tuple_

from app.store.tables import idempotency_keys, jobs, notifications, runs, workers

KEEP_SECONDS = 7 * 86400.0
STEP_ROWS = 100


def expire_jobs(connection: Connection, now: float) -> None:
    """Those of the oldest jobs that have long ended."""
    oldest = select(jobs.c.id, jobs.c.finished_at).order_by(jobs.c.id).limit(STEP_ROWS).subquery()
    old = select(oldest.c.id).where(oldest.c.finished_at < now - KEEP_SECONDS)
    connection.execute(delete(jobs).where(jobs.c.id.in_(old)))


def expire_notifications(connection: Connection, now: float) -> None:
    """Those of the oldest that tell of a run, whether somebody was told or not."""
    oldest = (
        select(notifications.c.id, notifications.c.t)
        .where(notifications.c.run_id.is_not(None))
        .order_by(notifications.c.id)
        .limit(STEP_ROWS)
        .subquery()
    )
    old = select(oldest.c.id).where(oldest.c.t < now - KEEP_SECONDS)
    connection.execute(delete(notifications).where(notifications.c.id.in_(old)))


def expire_keys(connection: Connection, now: float) -> None:
    """Idempotency keys that no client repeats any more."""
    key = tuple_(idempotency_keys.c.scope, idempotency_keys.c.key)
    old = (
        select(idempotency_keys.c.scope, idempotency_keys.c.key)
        .where(idempotency_keys.c.created_at < now - KEEP_SECONDS)
        .order_by(idempotency_keys.c.created_at)
        .limit(STEP_ROWS)
        .with_for_update(skip_locked=True)
    )
    connection.execute(delete(idempotency_keys).where(key.in_(old)))


def expire_workers(connection: Connection, now: float) -> None:
    """Dead workers that no run and no job refers to."""
    old = (
        select(workers.c.id)
        .where(
            workers.c.state.in_(["gone", "lost"]),
            workers.c.seen_at < now - KEEP_SECONDS,
            ~exists().where(runs.c.worker_id == workers.c.id),
            ~exists().where(jobs.c.worker_id == workers.c.id),
        )
        .order_by(workers.c.id)
        .limit(STEP_ROWS)
        .with_for_update(skip_locked=True)
    )
    connection.execute(delete(workers).where(workers.c.id.in_(old)))
