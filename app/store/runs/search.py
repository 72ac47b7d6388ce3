"""Which runs a list shows: found by one index, so that a page takes as long in any history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, not_, or_, select

from app.errors import InvalidRequest
from app.lifecycle import Intent, RunState
from app.store.offers import all_offers, is_short_of_memory
from app.store.records import RunFilter
from app.store.runs.claimable import awaited_is_active, source_is_active
from app.store.runs.rows import retrying, select_runs, starting
from app.store.tables import ACTIVE_VALUES, TERMINAL_VALUES, run_labels, runs

# Runs that a page looks at, at most: some of those that an index finds are not shown, since they
# were deleted or fail another part of the filter.
LOOKED_AT = 10_000

Condition = ColumnElement[bool]
_NEWEST = select(func.max(runs.c.id))
# Clocks that were set back by more may hide a run from a filter by time.
CLOCK_STEP_SECONDS = 3600.0
_NO_ID = 2**63 - 1


@dataclass(frozen=True)
class Search:
    """`found` is what one index answers, in the order of `key`, an id; `shown` is asked of each."""

    key: ColumnElement[int]
    found: Sequence[Condition]
    shown: Sequence[Condition]

    def query(self) -> Select[Any]:
        """The runs, newest first."""
        query = select_runs()
        if self.key is run_labels.c.run_id:
            query = query.join(run_labels, run_labels.c.run_id == runs.c.id)
        return query.where(*self.found, *self.shown).order_by(self.key.desc())

    def last_looked_at(self, connection: Connection, before: int | None) -> int | None:
        """The id at which a page ends, full or not; None: nothing is left behind it."""
        if not self.found:  # then the ids themselves are counted, which have no large gaps
            top = 1 + (connection.execute(_NEWEST).scalar() or 0)
            end = (top if before is None else min(top, before)) - LOOKED_AT
            return end if end > 1 else None
        ids = select(self.key).where(*self.found).order_by(self.key.desc())
        if before is not None:
            ids = ids.where(self.key < before)
        return connection.execute(ids.offset(LOOKED_AT - 1).limit(1)).scalar()


def search_for(connection: Connection, wanted: RunFilter) -> Search:
    """The search of a filter; InvalidRequest for a status that does not exist."""
    searches = _searches(wanted)
    first, *others = searches or [Search(runs.c.id, [], [])]
    shown = [condition for other in others for condition in other.shown]
    if wanted.statuses:
        shown.append(_is_one_of(connection, wanted.statuses))
    if wanted.q:
        shown.append(or_(_contains(runs.c.name, wanted.q), _contains(runs.c.notes, wanted.q)))
    ids, times = _created(connection, wanted, first.key)
    return Search(first.key, [*first.found, *ids], [*shown, *times])


def _searches(wanted: RunFilter) -> list[Search]:
    """One for each part that an index can answer, that which finds the fewest runs first.

    `shown` says the same as `found`, so written that no index is used for it.
    """
    by_states = [] if wanted.state is None else [_by_column(runs.c.state, wanted.state)]
    states = {_state_of(status) for status in wanted.statuses}
    few = states <= set(ACTIVE_VALUES)
    if len(states) == 1 or (states and few):  # several are sorted: of those that are active
        by_states.append(Search(runs.c.id, [runs.c.state.in_(sorted(states))], []))
    by_label = [] if wanted.label is None else [_by_label(wanted.label)]
    few = few and (wanted.state is None or wanted.state in ACTIVE_VALUES)
    columns = (
        (runs.c.created_by, wanted.created_by),
        (runs.c.dataset, wanted.dataset),
        (runs.c.recipe, wanted.recipe),
    )
    return [
        *([] if wanted.parent_id is None else [_by_column(runs.c.parent_id, wanted.parent_id)]),
        *(by_states if few else by_label),
        *(by_label if few else by_states),
        *(_by_column(column, value) for column, value in columns if value is not None),
    ]


def _by_column(column: ColumnElement[Any], value: Any) -> Search:
    return Search(runs.c.id, [column == value], [func.coalesce(column, column) == value])


def _by_label(label: str) -> Search:
    key, has_value, value = label.partition("=")
    found = [run_labels.c.key == key]
    if has_value:
        found.append(run_labels.c.value == value)
    shown = exists().where(run_labels.c.run_id == runs.c.id, *found)
    return Search(run_labels.c.run_id, found, [shown])


def _created(
    connection: Connection, wanted: RunFilter, key: ColumnElement[int]
) -> tuple[list[Condition], list[Condition]]:
    """(bounds of the ids, the times themselves): ids rise with the time, as clocks have it."""
    ids: list[Condition] = []
    times: list[Condition] = []
    at = runs.c.created_at
    if wanted.created_after is not None:
        times.append(at >= wanted.created_after)
        reaches = at >= wanted.created_after - CLOCK_STEP_SECONDS
        first = select(runs.c.id).where(reaches).order_by(at, runs.c.id).limit(1)
        ids.append(key >= (connection.execute(first).scalar() or _NO_ID))
    if wanted.created_before is not None:
        times.append(at < wanted.created_before)
        reaches = at < wanted.created_before + CLOCK_STEP_SECONDS
        last = select(runs.c.id).where(reaches).order_by(at.desc(), runs.c.id.desc()).limit(1)
        ids.append(key <= (connection.execute(last).scalar() or 0))
    return ids, times


_AS_MEANT = runs.c.intent == Intent.run.value
_WAITS = or_(func.coalesce(awaited_is_active, False), func.coalesce(source_is_active, False))
# The choice of `lifecycle.derive_status`: the state, and what else has to hold.
_STATUSES: dict[str, tuple[RunState, list[Condition]]] = {
    "starting": (RunState.running, [_AS_MEANT, starting]),
    "running": (RunState.running, [_AS_MEANT, ~starting]),
    "pausing": (RunState.running, [runs.c.intent == Intent.pause.value]),
    "stopping": (RunState.running, [runs.c.intent == Intent.stop.value]),
    "killing": (RunState.running, [runs.c.intent == Intent.kill.value]),
    "waiting_for_parent": (RunState.queued, [_WAITS]),
    "waiting_for_memory": (RunState.queued, [~_WAITS]),
    "retrying": (RunState.queued, [~_WAITS, retrying]),
    "queued": (RunState.queued, [~_WAITS, ~retrying]),
    **{value: (RunState(value), []) for value in ("paused", *TERMINAL_VALUES)},
}
# Of those that wait for no parent: whether the idle slots lack memory for them.
_BY_OFFERS = {"waiting_for_memory": True, "retrying": False, "queued": False}


def _is_one_of(connection: Connection, statuses: Sequence[str]) -> Condition:
    is_short = None
    if not _BY_OFFERS.keys().isdisjoint(statuses):
        is_short = is_short_of_memory(all_offers(connection))
    each = []
    for status in statuses:
        state, conditions = _STATUSES[status]
        held = [func.coalesce(runs.c.state, runs.c.state) == state.value, *conditions]
        if is_short is not None and status in _BY_OFFERS:
            held.append(is_short if _BY_OFFERS[status] else not_(is_short))
        each.append(and_(*held))
    return or_(*each)


def _state_of(status: str) -> RunState:
    if status not in _STATUSES:
        raise InvalidRequest(
            f"There is no status {status!r}. It is one of: {', '.join(_STATUSES)}."
        )
    return _STATUSES[status][0]


def _contains(column: ColumnElement[str], text: str) -> Condition:
    return column.icontains(text, autoescape=True)
