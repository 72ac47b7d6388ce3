"""Checkpoints: what is saved, which is latest and best, and what must not be removed."""

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    exists,
    or_,
    select,
    update,
)

from app.errors import Conflict, NotFound
from app.spec.script import SCRIPT
from app.store.checkpoint_rows import DAMAGED, REMOVING, SAVED, damage_checkpoints
from app.store.engine.clock import Clock
from app.store.engine.database import Database, retried
from app.store.engine.sequences import take_id
from app.store.jobs import add_job, get_job, has_open_job
from app.store.records import CheckpointRecord, DamagedCheckpoint
from app.store.runs.beats import held_run
from app.store.tables import TERMINAL_VALUES, checkpoints, run_documents, runs
from app.store.weights.export_rows import is_being_exported
from app.store.weights.imported_rows import IMPORT, WantedImport
from app.store.worker_records import JobRecord

Paths = list[str]
_rival = checkpoints.alias("rival")
_own = checkpoints.alias("own")
_child = runs.alias("child")


def newest_first(table: Any) -> list[ColumnElement[Any]]:
    return [table.c.step.desc(), table.c.id.desc()]


def best_first(table: Any) -> list[ColumnElement[Any]]:
    return [table.c.score.asc(), table.c.step.asc(), table.c.id.asc()]


def _saved(table: Any, run_id: Any, *more: ColumnElement[bool]) -> Select[Any]:
    return (
        select(table.c.id).where(table.c.run_id == run_id, table.c.state == SAVED, *more).limit(1)
    )


def _is_chosen(order: list[ColumnElement[Any]], *more: ColumnElement[bool]) -> ColumnElement[bool]:
    first = _saved(_rival, checkpoints.c.run_id, *more).order_by(*order)
    return and_(
        checkpoints.c.state == SAVED,
        checkpoints.c.id == first.correlate(checkpoints).scalar_subquery(),
    )


is_latest = _is_chosen(newest_first(_rival))
is_best = and_(
    checkpoints.c.score.is_not(None),
    _is_chosen(best_first(_rival), _rival.c.score.is_not(None)),
)
# A child, or a run that takes its first weights from it, needs a checkpoint until it has one of its
# own or is over. While it waits for a run, it needs whatever is that run's latest or best by then.
needed_by_child = exists().where(
    _child.c.state.not_in(TERMINAL_VALUES),
    ~exists().where(_own.c.run_id == _child.c.id, _own.c.state == SAVED).correlate(_child),
    or_(
        _child.c.restart_checkpoint_id == checkpoints.c.id,
        _child.c.init_from_checkpoint == checkpoints.c.id,
        and_(
            _child.c.waits_for == checkpoints.c.run_id,
            _child.c.attempt == 0,
            _child.c.restart_from != "scratch",
            or_(is_latest, is_best),
        ),
        and_(
            _child.c.init_from_run == checkpoints.c.run_id,
            _child.c.init_from_checkpoint.is_(None),
            _child.c.attempt == 0,
            or_(is_latest, is_best),
        ),
    ),
)
is_held = or_(checkpoints.c.pinned, needed_by_child, is_being_exported)


def latest_of(connection: Connection, run_id: int) -> int | None:
    """Id of the newest saved checkpoint of a run."""
    return connection.execute(
        _saved(checkpoints, run_id).order_by(*newest_first(checkpoints))
    ).scalar()


def best_of(connection: Connection, run_id: int) -> int | None:
    """Id of the saved checkpoint with the best monitored metric; None when none was evaluated."""
    scored = _saved(checkpoints, run_id, checkpoints.c.score.is_not(None))
    return connection.execute(scored.order_by(*best_first(checkpoints))).scalar()


def best_or_latest_of(connection: Connection, run_id: int) -> int | None:
    """Id of the best; of a run that was not evaluated the newest is the best that there is."""
    best = best_of(connection, run_id)
    return latest_of(connection, run_id) if best is None else best


def why_none(connection: Connection, run_id: int) -> str | None:
    """That all of a run's checkpoints are damaged; None: that is not so."""
    states = select(checkpoints.c.state).where(checkpoints.c.run_id == run_id)
    found = list(connection.execute(states).scalars())
    damaged = found.count(DAMAGED)
    if not damaged or SAVED in found:
        return None
    many = "its only checkpoint is" if damaged == 1 else f"all of its {damaged} checkpoints are"
    return (
        f"{many} damaged. `stoker checkpoints {run_id}` says what is wrong; `stoker restart "
        f"{run_id} --from scratch` begins anew"
    )


def _why_no_best(connection: Connection, run_id: int) -> str:
    """And what to do; there is another one."""
    monitor = run_documents.c.spec["checkpoint"]["monitor"].as_string()
    wanted = select(runs.c.recipe, monitor).join(run_documents, run_documents.c.run_id == runs.c.id)
    recipe, metric = connection.execute(wanted.where(runs.c.id == run_id)).one()
    latest = f"`stoker download {run_id}`"
    if recipe != SCRIPT:
        return (
            f"none was saved after an evaluation; {latest} and `stoker export {run_id} --latest` "
            "take the latest"
        )
    return (
        f"none was saved with the metric {metric}, which decides what is best. {latest} takes the "
        "latest. A "
        f'script gives it by `stoker.init().checkpoint(step, {{"{metric}": …}})`; '
        "checkpoint.monitor names another metric"
    )


class Checkpoints:
    """Lists, pins and removes checkpoints; what beats write of them is in checkpoint_rows."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def list(self, run_id: int) -> list[CheckpointRecord]:
        """Those of a run, newest first, also those about to be removed."""
        wanted = _select().where(checkpoints.c.run_id == run_id)
        with self._database.read() as connection:
            rows = connection.execute(wanted.order_by(*newest_first(checkpoints))).all()
        return [_to_record(row) for row in rows]

    def get(self, checkpoint_id: int) -> CheckpointRecord:
        """NotFound when there is none, or none any more."""
        with self._database.read() as connection:
            return _fetch(connection, checkpoint_id)

    def resolve(self, run_id: int, which: Literal["latest", "best"]) -> CheckpointRecord:
        """The run's latest or best; NotFound with the reason."""
        with self._database.read() as connection:
            choose = latest_of if which == "latest" else best_of
            chosen = choose(connection, run_id)
            if chosen is None:
                why = why_none(connection, run_id) or (
                    _why_no_best(connection, run_id)
                    if which == "best" and latest_of(connection, run_id) is not None
                    else f"none was saved; `stoker show {run_id}` says how far it came"
                )
                raise NotFound(f"Run {run_id} has no {which} checkpoint: {why}.")
            return _fetch(connection, chosen)

    @retried
    def set_pinned(self, checkpoint_id: int, pinned: bool) -> CheckpointRecord:
        """Pin or unpin for a person; a child's need holds it all the same."""
        with self._database.write() as connection:
            row = _lock(connection, checkpoint_id)
            if pinned and row.state == REMOVING:
                raise Conflict(
                    f"Checkpoint {checkpoint_id} is being removed, so it is too late to keep it. "
                    f"`stoker checkpoints {row.run_id}` shows the others."
                )
            connection.execute(
                update(checkpoints).where(checkpoints.c.id == checkpoint_id).values(pinned=pinned)
            )
            return _fetch(connection, checkpoint_id)

    @retried
    def request_delete(self, checkpoint_id: int) -> CheckpointRecord:
        """Have a worker remove it. Conflict while it is pinned or a child needs it.

        Asked again while that is under way, it changes nothing; once more after it was given up.
        """
        with self._database.write(ring=True) as connection:
            row = _lock(connection, checkpoint_id)
            if connection.execute(
                select(checkpoints.c.id).where(checkpoints.c.id == checkpoint_id, is_held)
            ).scalar():
                raise Conflict(
                    f"Checkpoint {checkpoint_id} is pinned or being exported, or a run that goes "
                    "on from it or takes its first weights from it has saved nothing of its own "
                    "yet. Unpin it, or wait for the export or that run.",
                    code="checkpoint_in_use",
                )
            connection.execute(
                update(checkpoints).where(checkpoints.c.id == checkpoint_id).values(state=REMOVING)
            )
            aside = [f"{row.path}.torn"] if row.state == DAMAGED else []  # it may be called so
            paths = [row.path, *aside]
            payload = {"run_id": row.run_id, "paths": paths, "checkpoint_id": checkpoint_id}
            if not has_open_job(connection, "remove_artifacts", payload):
                add_job(connection, "remove_artifacts", payload, self._clock())
            return _fetch(connection, checkpoint_id)

    @retried
    def order_import(self, wanted: WantedImport) -> JobRecord:
        """Have a worker read weights from elsewhere. The run that they become has its id from now
        on, for its folder has it; it is there when they are.
        """
        with self._database.write(ring=True) as connection:
            payload = {**vars(wanted), "run_id": take_id(connection, "runs")}
            return get_job(connection, add_job(connection, IMPORT, payload, self._clock()))

    @retried
    def note_damage(self, checkpoint_id: int, why: str) -> None:
        """One that was found damaged by whoever read it."""
        with self._database.write() as connection:
            row = _lock(connection, checkpoint_id)
            found = [DamagedCheckpoint(row.path, why)]
            damage_checkpoints(connection, row.run_id, row.attempt, found)

    @retried
    def begin_removal(
        self, token: str, paths: Sequence[str], patience_seconds: float | None = None
    ) -> Paths:
        """Mark checkpoints of the lease's run as about to be removed; those of them that may be.

        Asked before files go, it keeps a restart from choosing what is vanishing. LeaseLost.
        `patience_seconds`: how long to wait for others' locks, if not as usual.
        """
        with self._database.write(patience_seconds=patience_seconds) as connection:
            return mark_removing(connection, held_run(connection, token), paths)


def mark_removing(connection: Connection, run_id: int, paths: Sequence[str]) -> Paths:
    """Mark those that nobody holds; their paths.

    They are locked first: a restart that is choosing one of them is then either seen, or sees.
    """
    wanted = select(checkpoints.c.id).where(
        checkpoints.c.run_id == run_id, checkpoints.c.path.in_(paths)
    )
    locked = wanted.order_by(checkpoints.c.id).with_for_update()
    ids = connection.execute(locked).scalars().all()
    mark = (
        update(checkpoints)
        .where(checkpoints.c.id.in_(ids), ~is_held)
        .values(state=REMOVING)
        .returning(checkpoints.c.path)
    )
    return sorted(connection.execute(mark).scalars())


def _select() -> Select[Any]:
    made = {"is_best", "is_latest", "pinned", "epoch"}
    names = set(CheckpointRecord.__dataclass_fields__) - made
    of_script = exists().where(runs.c.id == checkpoints.c.run_id, runs.c.recipe == SCRIPT)
    return select(
        *[checkpoints.c[name] for name in sorted(names)],
        case((of_script.correlate(checkpoints), None), else_=checkpoints.c.epoch).label("epoch"),
        is_best.label("is_best"),
        is_latest.label("is_latest"),
        is_held.label("pinned"),
    )


def _to_record(row: Row[Any]) -> CheckpointRecord:
    return CheckpointRecord(**row._asdict())


def _fetch(connection: Connection, checkpoint_id: int) -> CheckpointRecord:
    row = connection.execute(_select().where(checkpoints.c.id == checkpoint_id)).one_or_none()
    if row is None:
        raise _missing(checkpoint_id)
    return _to_record(row)


def _lock(connection: Connection, checkpoint_id: int) -> Row[Any]:
    wanted = select(checkpoints).where(checkpoints.c.id == checkpoint_id).with_for_update()
    row = connection.execute(wanted).one_or_none()
    if row is None:
        raise _missing(checkpoint_id)
    return row


def _missing(checkpoint_id: int) -> NotFound:
    return NotFound(
        f"There is no checkpoint {checkpoint_id}, or it was removed. `stoker checkpoints RUN` "
        "shows those of a run."
    )
