"""Where a run takes its first weights from (`init_from`): a checkpoint, or a run that it awaits."""

from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Row, select

from app.errors import InvalidRequest
from app.lifecycle import RunState
from app.store.checkpoint_rows import SAVED
from app.store.checkpoints import best_or_latest_of, latest_of
from app.store.records import Document, RestorePoint
from app.store.runs.restart_points import MAX_ANCESTORS, lock_saved
from app.store.tables import checkpoints, run_documents, runs


class FirstWeights(NamedTuple):
    """What `init_from` names, as of now; `checkpoint_id`: None while the run has saved nothing."""

    run_id: int
    checkpoint_id: int | None


def find_first_weights(connection: Connection, init_from: Document) -> FirstWeights | None:
    """None where there is no such run or checkpoint, or none any more."""
    named = init_from.get("checkpoint")
    if named is not None:
        saved = select(checkpoints.c.run_id).where(
            checkpoints.c.id == named, checkpoints.c.state == SAVED
        )
        run_id = connection.execute(saved).scalar()
        return None if run_id is None else FirstWeights(run_id, named)
    run_id = _run_called(connection, init_from["run"])
    if run_id is None:
        return None
    return FirstWeights(run_id, _chosen(connection, run_id, init_from["which"]))


def meant_by(connection: Connection, init_from: Document, parent: Row[Any]) -> Document:
    """What a restart of `parent` means: the run that this one meant, where both say the same, for a
    name may be that of another run by now.
    """
    meant = parent.init_from_run
    if "run" not in init_from or meant is None:
        return init_from
    spec = select(run_documents.c.spec).where(run_documents.c.run_id == parent.id)
    same = connection.execute(spec).scalar_one().get("init_from") == init_from
    return {**init_from, "run": meant} if same else init_from


def columns_for(connection: Connection, init_from: Document | None) -> Document:
    """What the row of a new run says of it, held in this transaction. InvalidRequest where it names
    what is not there: somebody has removed it since the guard looked.
    """
    if init_from is None:
        return {}
    found = find_first_weights(connection, init_from)
    named = init_from.get("checkpoint")
    if found is None or (named is not None and not lock_saved(connection, named)):
        raise InvalidRequest(
            "What init_from names is not there any more. `stoker ls` shows the runs, `stoker "
            "checkpoints RUN` what each has saved.",
            code="no_such_checkpoint",
        )
    return {"init_from_run": found.run_id, "init_from_checkpoint": named}


def columns_of_child(
    connection: Connection, parent: Row[Any], init_from: Document | None, carry: str | None
) -> Document:
    """Of a restart. A child that carries its parent's weights does without these."""
    if init_from is None:
        return {}
    try:
        return columns_for(connection, meant_by(connection, init_from, parent))
    except InvalidRequest:
        if carry == "scratch":
            raise
        return {}


def settled_checkpoint(connection: Connection, run: Row[Any]) -> int | None:
    """The checkpoint of the run that was waited for, chosen when the first attempt is claimed and
    held from then on; None: it has none.
    """
    if run.init_from_run is None or run.init_from_checkpoint is not None:
        return cast("int | None", run.init_from_checkpoint)
    spec = select(run_documents.c.spec).where(run_documents.c.run_id == run.id)
    which = connection.execute(spec).scalar_one()["init_from"]["which"]
    while True:
        chosen = _chosen(connection, run.init_from_run, which)
        if chosen is None or lock_saved(connection, chosen):
            return chosen


def told_of_source(connection: Connection, run: Row[Any]) -> str | None:
    """At the first claim, where the run that was waited for has not trained to its end."""
    if run.attempt > 0 or run.init_from_run is None or run.init_from_checkpoint is not None:
        return None
    state = connection.execute(select(runs.c.state).where(runs.c.id == run.init_from_run)).scalar()
    if state == RunState.succeeded.value:
        return None
    ended = "has failed" if state == RunState.failed.value else "was stopped"
    return (
        f"It begins with the weights of run {run.init_from_run}, which {ended} before the end of "
        "its training."
    )


def first_weights_point(connection: Connection, run_id: int) -> tuple[RestorePoint, ...]:
    """What a run begins with where neither it nor a run that it stems from has saved anything."""
    columns = select(runs.c.init_from_run, checkpoints.c.path).outerjoin(
        checkpoints, checkpoints.c.id == runs.c.init_from_checkpoint
    )
    row = connection.execute(columns.where(runs.c.id == run_id)).one()
    if row.init_from_run is None:
        return ()
    return (RestorePoint(row.init_from_run, "init", row.path),)


def lineage(connection: Connection, run_id: int) -> list[int]:
    """Returns the run, and before it all whose weights it began with, the last one first."""
    line: list[int] = []
    columns = select(runs.c.parent_id, runs.c.restart_from, runs.c.carry, runs.c.init_from_run)
    following: int | None = run_id
    while following is not None and len(line) < MAX_ANCESTORS:
        line.append(following)
        row = connection.execute(columns.where(runs.c.id == following)).one()
        carried = (row.carry or {}).get("kind", "scratch")
        goes_on = row.restart_from != "scratch" and carried != "scratch"
        following = row.parent_id if goes_on else row.init_from_run
    return line


def _run_called(connection: Connection, which: int | str) -> int | None:
    """By its id, or the newest of that name."""
    found = select(runs.c.id).where(runs.c.deleted_at.is_(None))
    if isinstance(which, int):
        found = found.where(runs.c.id == which)
    else:
        found = found.where(runs.c.name == which).order_by(runs.c.id.desc()).limit(1)
    return connection.execute(found).scalar()


def _chosen(connection: Connection, run_id: int, which: str) -> int | None:
    choose = best_or_latest_of if which == "best" else latest_of
    return choose(connection, run_id)
