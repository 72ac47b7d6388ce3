"""The queue: runs that wait, in the order in which they are claimed, and how one is moved in it.

The order is priority, then place, then id. A run's place is its id when it is submitted, and no
place is above the newest id, so that whatever comes later comes behind.
"""

from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select, update

from app.errors import ActionNotAllowed
from app.lifecycle import TERMINAL, Intent, RunState, allowed_actions
from app.store.engine.cursor import not_a_cursor, parse_cursor
from app.store.runs.claimable import CLAIM_ORDER, IS_WAITING, is_placed_before
from app.store.runs.rows import lock
from app.store.tables import runs

# An end of the queue, or the run that is to be the neighbour.
Place = Literal["first", "last"] | int


def behind(connection: Connection, cursor: str) -> ColumnElement[bool]:
    """What is claimed after the run that a cursor names; InvalidRequest when no page gave it."""
    wanted = select(runs).where(runs.c.id == parse_cursor(cursor))
    last = connection.execute(wanted).one_or_none()
    if last is None:
        raise not_a_cursor(cursor)
    same = runs.c.priority == last.priority
    return or_(
        runs.c.priority < last.priority, and_(same, ~is_placed_before(last), runs.c.id != last.id)
    )


def count_waiting(condition: Any) -> Select[Any]:
    return select(func.count()).select_from(runs).where(IS_WAITING, condition)


def move_in_queue(connection: Connection, run: Row[Any], to: Place, *, after: bool) -> None:
    """Move a locked run to an end of the queue, or before or `after` the run of this id; it takes
    over the priority that is needed there. NotFound, ActionNotAllowed where one of both does not
    wait.
    """
    _require_waiting(run)
    others = (IS_WAITING, runs.c.id != run.id)
    other: Row[Any] | None
    if isinstance(to, int):
        other = lock(connection, to)
        _require_waiting(other)
    else:
        order = CLAIM_ORDER if to == "first" else _BACKWARDS
        query = select(runs).where(*others).order_by(*order).limit(1)
        other = connection.execute(query).one_or_none()
    if other is None or other.id == run.id:
        return
    of_class = (*others, runs.c.priority == other.priority)
    if to == "last":
        # All others make room, so that its place stays below those of the runs to come.
        _shift(connection, of_class, 1)
        place = other.place
    else:
        ahead = is_placed_before(other)
        if after:
            ahead = or_(ahead, runs.c.id == other.id)
        _shift(connection, (*of_class, ahead), 2)
        place = other.place - 1
    connection.execute(
        update(runs)
        .where(runs.c.id == run.id)
        .values(priority=other.priority, place=place, version=runs.c.version + 1)
    )


_BACKWARDS = (runs.c.priority, runs.c.place.desc(), runs.c.id.desc())


def _shift(connection: Connection, which: tuple[ColumnElement[bool], ...], by: int) -> None:
    connection.execute(update(runs).where(*which).values(place=runs.c.place - by))


def _require_waiting(run: Row[Any]) -> None:
    state, intent = RunState(run.state), Intent(run.intent)
    if state is RunState.queued and intent is Intent.run:
        return
    verb = "has" if state in TERMINAL else "is"
    raise ActionNotAllowed(
        f"Run {run.id} {verb} {state.value}; only a run that waits has a place in the queue.",
        allowed_actions=allowed_actions(state, intent),
    )
