"""What a restart goes on from: the one way back through the runs that it stems from."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from app.errors import InvalidRequest
from app.store.checkpoint_rows import SAVED
from app.store.checkpoints import best_or_latest_of, latest_of, why_none
from app.store.records import CarryKind, RestorePoint
from app.store.tables import checkpoints, runs

# Restarts of restarts that have saved nothing of their own; a longer chain is not followed.
MAX_ANCESTORS = 100
CARRY_ORDER = ("scratch", "weights", "full")
WISHES = ("latest", "best")


class Origin(NamedTuple):
    """How a run came from its parent, as its row says it; `carry` is between these two alone."""

    parent_id: int | None
    restart_from: str | None
    carry_kind: CarryKind | None


class RestartSource(NamedTuple):
    """A run to go on from. `is_only`: nothing but this checkpoint; else the run's newest."""

    run_id: int
    carry: Literal["full", "weights"]
    checkpoint_id: int | None
    is_only: bool


def find_sources(connection: Connection, origin: Origin) -> list[RestartSource]:
    """Where a child of this origin can go on from, as of now, the first choice first.

    A run that has saved nothing hands on what it would have gone on from itself. A wish for the
    best holds on the way there, and a checkpoint that was named ends it.
    """
    found: list[RestartSource] = []
    wish = "latest"
    for run_id, wished, carry in _way_back(connection, origin):
        wish = max(wish, wished, key=_strength)
        if wish == "latest":
            found.append(RestartSource(run_id, carry, latest_of(connection, run_id), is_only=False))
            continue
        chosen = _choose(connection, run_id, wish)
        if chosen is not None:
            found.append(RestartSource(run_id, carry, chosen, is_only=True))
            break
    return found


class WholeState(NamedTuple):
    """A checkpoint that a child would carry on from with all that is in it."""

    run_id: int
    step: int


def find_whole_state(connection: Connection, origin: Origin) -> WholeState | None:
    """What a child of this origin would go on from, as of now; None where nothing is saved, or the
    weights alone are taken.
    """
    saved = [s for s in find_sources(connection, origin) if s.checkpoint_id is not None]
    if not saved or saved[0].carry != "full":
        return None
    step = select(checkpoints.c.step).where(checkpoints.c.id == saved[0].checkpoint_id)
    return WholeState(saved[0].run_id, connection.execute(step).scalar_one())


def hold_first(connection: Connection, origin: Origin) -> RestartSource | None:
    """The first source that has a checkpoint, which cannot be removed in this transaction."""
    while True:
        saved = [s for s in find_sources(connection, origin) if s.checkpoint_id is not None]
        if not saved or lock_saved(connection, saved[0].checkpoint_id):
            return saved[0] if saved else None


def require_what_was_asked(
    connection: Connection, origin: Origin, source: RestartSource | None, *, waits: bool
) -> None:
    """InvalidRequest when the first source is not what was asked for, and cannot come to be.

    `waits`: a run that the child stems from still trains.
    """
    asked, parent = origin.restart_from, origin.parent_id
    damaged = why_none(connection, parent) if parent is not None and not waits else None
    if asked in WISHES and damaged is not None:
        raise InvalidRequest(
            f"Run {parent} has nothing to go on from: {damaged}.", code="no_such_checkpoint"
        )
    if asked == "best" and not waits and not _is_evaluated(connection, source):
        raise InvalidRequest(
            f"Run {parent} has no best checkpoint, since none was saved after an "
            "evaluation. Restart it from latest or from scratch.",
            code="no_such_checkpoint",
        )
    if asked not in (*WISHES, "scratch") and source is None:
        raise InvalidRequest(
            f"Checkpoint {asked} is not a saved one of run {parent} or of the runs that "
            f"it goes on from; a start from scratch ends that line. `stoker checkpoints "
            f"{parent}` shows what there is.",
            code="no_such_checkpoint",
        )


def restore_points(connection: Connection, origin: Origin) -> tuple[RestorePoint, ...]:
    """The sources as a worker needs them, with paths."""
    return tuple(
        RestorePoint(source.run_id, source.carry, _path_of(connection, source))
        for source in find_sources(connection, origin)
    )


def _way_back(
    connection: Connection, origin: Origin
) -> Iterator[tuple[int, str, Literal["full", "weights"]]]:
    """(run, how the one before asked for it, the weakest carry from the child to there)."""
    carry: CarryKind = "full"
    for _ in range(MAX_ANCESTORS):
        run_id, wished, between = origin
        if run_id is None or wished is None or between is None or wished == "scratch":
            return
        carry = min(carry, between, key=CARRY_ORDER.index)
        if carry == "scratch":
            return
        yield run_id, wished, carry
        origin = origin_of(connection, run_id)


def origin_of(connection: Connection, run_id: int) -> Origin:
    """How a run came to be."""
    wanted = select(runs.c.parent_id, runs.c.restart_from, runs.c.carry).where(runs.c.id == run_id)
    row = connection.execute(wanted).one()
    return Origin(row.parent_id, row.restart_from, row.carry and row.carry["kind"])


def _strength(wish: str) -> int:
    return WISHES.index(wish) if wish in WISHES else len(WISHES)


def _choose(connection: Connection, run_id: int, wish: str) -> int | None:
    if wish == "best":
        return best_or_latest_of(connection, run_id)
    named = select(checkpoints.c.id).where(
        checkpoints.c.id == int(wish),
        checkpoints.c.run_id == run_id,
        checkpoints.c.state == SAVED,
    )
    return connection.execute(named).scalar()


def lock_saved(connection: Connection, checkpoint_id: int | None) -> bool:
    """Whether it is there; it cannot be removed in this transaction."""
    wanted = select(checkpoints.c.id).where(
        checkpoints.c.id == checkpoint_id, checkpoints.c.state == SAVED
    )
    return connection.execute(wanted.with_for_update()).scalar() is not None


def _is_evaluated(connection: Connection, source: RestartSource | None) -> bool:
    if source is None:
        return False
    score = select(checkpoints.c.score).where(checkpoints.c.id == source.checkpoint_id)
    return connection.execute(score).scalar() is not None


def _path_of(connection: Connection, source: RestartSource) -> str | None:
    if not source.is_only:
        return None
    path = select(checkpoints.c.path).where(checkpoints.c.id == source.checkpoint_id)
    return str(connection.execute(path).scalar_one())
