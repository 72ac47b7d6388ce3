"""Runs: submit, look at, change, steer, count."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from sqlalchemy import (
    bindparam,
    delete,
    func,
    select,
    update,
)

from app.errors import InvalidRequest, StokerError
from app.lifecycle import Intent, RunState
from app.store.engine.clock import Clock
from app.store.engine.cursor import cursor_of, parse_cursor
from app.store.engine.database import Database, retried
from app.store.records import (
    Document,
    Idempotency,
    NewRun,
    Restart,
    RunFilter,
    RunRecord,
    StoredDocuments,
    StoredPage,
    WatchMark,
)
from app.store.runs import intents
from app.store.runs.claimable import CLAIM_ORDER, IS_WAITING
from app.store.runs.first_weights import (
    FirstWeights,
    find_first_weights,
    lineage,
    meant_by,
)
from app.store.runs.queue import Place, behind, count_waiting, move_in_queue
from app.store.runs.removal import order_removal, remove_run, wholly_deleted
from app.store.runs.restart_points import Origin, WholeState, find_whole_state
from app.store.runs.rows import (
    fetch,
    lock,
    missing,
    select_runs,
    to_records,
)
from app.store.runs.search import search_for
from app.store.runs.submission import (
    claim_key,
    find_key,
    insert_restart,
    insert_run,
    remember_key,
    set_labels,
)
from app.store.tables import (
    ACTIVE_VALUES,
    attempts,
    run_documents,
    run_labels,
    runs,
)
from app.store.telemetry.measured_memory import compared

# How much of a diff a run shows; its documents and events have it whole.
DIFF_CHARACTERS = 65_536
CHANGEABLE = frozenset({"name", "notes", "labels", "priority"})
# Read after each commit while somebody follows; to build it costs more than to execute it.
_MARKS = select(runs.c.id, *(runs.c[name] for name in WatchMark._fields)).where(
    runs.c.id.in_(bindparam("ids", expanding=True)), runs.c.deleted_at.is_(None)
)

# Of the diff, which may be large, so much is read.
_CODE = {
    "git_sha": run_documents.c.code["git_sha"].as_string(),
    "repository": run_documents.c.code["repository"].as_string(),
    "folder": run_documents.c.code["folder"].as_string(),
    "dirty": run_documents.c.code["dirty"].as_boolean(),
    "diff_bytes": run_documents.c.code["diff_bytes"].as_integer(),
    "diff": func.substr(run_documents.c.code["diff"].as_string(), 1, DIFF_CHARACTERS),
    "argv": run_documents.c.code["argv"],
}
_SCRIPT = select(
    run_documents.c.spec,
    run_documents.c.code.is_not(None),
    func.json_array_length(run_documents.c.code["untracked"]),
    *_CODE.values(),
).where(run_documents.c.run_id == bindparam("run"))

# Read from one index, without a look at the rows.
_ENDED = (
    select(
        runs.c.state,
        runs.c.reason,
        func.count().label("ended"),
        func.count(runs.c.deleted_at).label("deleted"),
    )
    .where(runs.c.finished_at.is_not(None))
    .group_by(runs.c.state, runs.c.reason)
)


class _Undone(Exception):
    """Ends a transaction that was a dry run."""


class Runs:
    """Everything that changes a run is one transaction with its event."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    # --- submit -----------------------------------------------------------------------------

    @retried
    def create(
        self, new: NewRun, *, idempotency: Idempotency | None = None
    ) -> tuple[RunRecord, bool]:
        """Queue a run; (run, whether it is new). InvalidRequest: a key used with another body."""
        with self._database.write(ring=True) as connection:
            now = self._clock()
            known = claim_key(connection, idempotency, now)
            if known is not None:
                return fetch(connection, known, now), False
            run_id = insert_run(connection, new, now)
            remember_key(connection, idempotency, run_id)
            return fetch(connection, run_id, now), True

    @retried
    def restart(
        self,
        restart: Restart,
        new: NewRun,
        *,
        idempotency: Idempotency | None = None,
        if_version: int | None = None,
    ) -> tuple[RunRecord, bool]:
        """Queue a child and ask an active parent to stop; (child, whether it is new).

        The child of an active parent takes its place in the queue. What it goes on from is held
        until it has a checkpoint of its own or is over. `if_version` is the parent's.
        """
        with self._database.write(ring=True) as connection:
            now = self._clock()
            known = claim_key(connection, idempotency, now)
            if known is not None:
                return fetch(connection, known, now), False
            run_id = insert_restart(connection, restart, new, now, if_version)
            remember_key(connection, idempotency, run_id)
            return fetch(connection, run_id, now), True

    @retried
    def try_restart(
        self, restart: Restart, new: NewRun, if_version: int | None = None
    ) -> RunRecord:
        """The child that `restart` would queue, which is undone; raises what `restart` would."""
        with suppress(_Undone), self._database.write() as connection:
            run_id = insert_restart(connection, restart, new, self._clock(), if_version)
            child = fetch(connection, run_id, self._clock())
            raise _Undone
        return child

    def made_by(self, idempotency: Idempotency) -> RunRecord | None:
        """The run that an earlier request with this key made. InvalidRequest as `create`."""
        with self._database.read() as connection:
            known = find_key(connection, idempotency)
            return None if known is None else fetch(connection, known, self._clock())

    # --- look at ----------------------------------------------------------------------------

    def first_weights(self, init_from: Document, parent_id: int | None) -> FirstWeights | None:
        """What `init_from` names, as of now, of a new run or of a restart; None: nothing."""
        with self._database.read() as connection:
            if parent_id is not None:
                parent = select(runs).where(runs.c.id == parent_id)
                init_from = meant_by(connection, init_from, connection.execute(parent).one())
            return find_first_weights(connection, init_from)

    def lineage(self, run_id: int) -> dict[int, Document | None]:
        """Returns by id the specs of the run and of all whose weights it began with, the last one
        first; None for a run that was deleted.
        """
        with self._database.read() as connection:
            line = lineage(connection, run_id)
            wanted = select(run_documents.c.run_id, run_documents.c.spec)
            rows = connection.execute(wanted.where(run_documents.c.run_id.in_(line)))
            specs: dict[int, Document] = {row.run_id: row.spec for row in rows}
        return {one: specs.get(one) for one in line}

    def get(self, run_id: int) -> RunRecord:
        """NotFound when there is none, or it was deleted."""
        with self._database.read() as connection:
            return fetch(connection, run_id, self._clock())

    def script(self, run_id: int) -> tuple[Document, Document | None]:
        """Spec and code of a script: the diff cut, of untracked files their number. NotFound."""
        with self._database.read() as connection:
            row = connection.execute(_SCRIPT, {"run": run_id}).one_or_none()
        if row is None:
            raise missing(run_id)
        spec, has_code, untracked, *values = row
        code = dict(zip(_CODE, values, strict=True)) | {"untracked": untracked or 0}
        return spec, code if has_code else None

    def documents(self, run_id: int) -> StoredDocuments:
        """Request, spec, provenance, issues, memory, and what each attempt applied. NotFound."""
        wanted = (
            select(run_documents, runs.c.progress)
            .join(runs, runs.c.id == run_documents.c.run_id)
            .where(runs.c.id == run_id, runs.c.deleted_at.is_(None))
        )
        applied = select(attempts.c.applied).where(attempts.c.run_id == run_id)
        with self._database.read() as connection:
            row = connection.execute(wanted).one_or_none()
            if row is None:
                raise missing(run_id)
            found = connection.execute(applied.order_by(attempts.c.number)).scalars().all()
        memory = compared(row.memory, (row.progress or {}).get("peak_memory"))
        documents = row.request, row.spec, row.provenance, row.issues, row.shape, row.code
        return StoredDocuments(*documents, list(found), memory)

    def list(
        self, wanted: RunFilter, limit: int, after: str | None = None
    ) -> StoredPage[RunRecord]:
        """Newest first; `after` is the cursor of the page before.

        A page ends early, and may be empty, when very many runs were looked at and not shown.
        """
        before = None if after is None else parse_cursor(after)
        with self._database.read() as connection:
            search = search_for(connection, wanted)
            query = search.query()
            if before is not None:
                query = query.where(search.key < before)
            end = search.last_looked_at(connection, before)
            if end is not None:
                query = query.where(search.key >= end)
            rows = connection.execute(query.limit(limit + 1)).all()
            records = to_records(connection, rows[:limit], self._clock())
        last = records[-1].id if len(rows) > limit else end
        return StoredPage(records, None if last is None else cursor_of(last))

    def find_ids(self, wanted: RunFilter, limit: int) -> Sequence[int]:
        """Ids of the newest runs that match."""
        with self._database.read() as connection:
            query = search_for(connection, wanted).query()
            query = query.limit(limit).with_only_columns(runs.c.id)
            return list(connection.execute(query).scalars())

    def watch_marks(self, ids: Sequence[int]) -> dict[int, WatchMark]:
        """What tells a follower that there is something new to read; deleted runs are absent."""
        with self._database.read() as connection:
            rows = connection.execute(_MARKS, {"ids": list(ids)})
            return {row.id: WatchMark(*row[1:]) for row in rows}

    def started_after(self, moment: float) -> dict[int, tuple[float, float]]:
        """By id: (created, started) of runs whose first attempt began after then."""
        query = select(runs.c.id, runs.c.created_at, runs.c.started_at).where(
            runs.c.started_at > moment
        )
        with self._database.read() as connection:
            rows = connection.execute(query)
            return {row.id: (row.created_at, row.started_at) for row in rows}

    def whole_state_of(
        self, run_id: int, wish: Literal["latest", "best", "scratch"] | int
    ) -> WholeState | None:
        """The checkpoint that a child with the same training would go on from, as of now; None
        where nothing is saved, or the weights alone would be taken.
        """
        with self._database.read() as connection:
            return find_whole_state(connection, Origin(run_id, str(wish), "full"))

    # --- change -----------------------------------------------------------------------------

    @retried
    def update(
        self, run_id: int, changes: Mapping[str, Any], if_version: int | None = None
    ) -> RunRecord:
        """Change name, notes, labels or priority. NotFound, PreconditionFailed."""
        unknown = set(changes) - CHANGEABLE
        if unknown:
            raise InvalidRequest(f"Not changeable in a run: {', '.join(sorted(unknown))}.")
        with self._database.write() as connection:
            lock(connection, run_id, if_version)
            if changes:
                connection.execute(
                    update(runs)
                    .where(runs.c.id == run_id)
                    .values(version=runs.c.version + 1, **changes)
                )
            if "labels" in changes:
                connection.execute(delete(run_labels).where(run_labels.c.run_id == run_id))
                set_labels(connection, run_id, changes["labels"])
            return fetch(connection, run_id, self._clock())

    @retried
    def move(
        self, run_id: int, to: Place, if_version: int | None = None, *, after: bool = False
    ) -> RunRecord:
        """To an end of the queue, or before or `after` another run. NotFound, PreconditionFailed,
        ActionNotAllowed.
        """
        with self._database.write(ring=True) as connection:
            move_in_queue(connection, lock(connection, run_id, if_version), to, after=after)
            return fetch(connection, run_id, self._clock())

    @retried
    def delete(self, run_id: int, if_version: int | None = None) -> None:
        """Delete a run that is over, and have a worker remove its artifacts. Its id stays taken.

        NotFound, PreconditionFailed; ActionNotAllowed while it is active, Conflict while a child
        needs it.
        """
        with self._database.write(ring=True) as connection:
            now = self._clock()
            remove_run(connection, run_id, now, if_version)
            order_removal(connection, [run_id], now)

    @retried
    def delete_all(self, run_ids: Sequence[int]) -> dict[int, StokerError]:
        """Each as by `delete`, all in one transaction; by id, why a run was kept."""
        kept: dict[int, StokerError] = {}
        with self._database.write(ring=True) as connection:
            now = self._clock()
            for run_id in sorted(run_ids):  # two that delete the same take turns
                try:
                    remove_run(connection, run_id, now)
                except StokerError as error:  # before anything was changed
                    kept[run_id] = error
            order_removal(connection, [one for one in run_ids if one not in kept], now)
        return kept

    def gone(self, submissions: Sequence[str]) -> set[str]:
        """Of these keys those whose runs were all deleted, not one that no run ever had."""
        with self._database.read() as connection:
            return set(connection.execute(wholly_deleted(submissions)).scalars())

    def ended_before(self, moment: float) -> Sequence[int]:
        """Ids of all runs that ended before then, those that ended first come first."""
        query = select(runs.c.id).where(runs.c.finished_at < moment, runs.c.deleted_at.is_(None))
        with self._database.read() as connection:
            return list(connection.execute(query.order_by(runs.c.finished_at)).scalars())

    # --- steer ------------------------------------------------------------------------------

    @retried
    def set_intent(
        self,
        run_id: int,
        intent: Intent,
        if_version: int | None = None,
        *,
        lose_progress: bool = False,
    ) -> tuple[RunRecord, bool]:
        """Ask for pause, stop or kill; (run, whether that changed anything).

        A run that nobody holds moves at once. `lose_progress`: pause also a script that has saved
        nothing. NotFound, PreconditionFailed, ActionNotAllowed.
        """
        with self._database.write(ring=True) as connection:
            run = lock(connection, run_id, if_version)
            now = self._clock()
            changed = intents.want(connection, run, intent, now, lose_progress=lose_progress)
            return fetch(connection, run_id, now), changed

    @retried
    def resume(self, run_id: int, if_version: int | None = None) -> tuple[RunRecord, bool]:
        """Withdraw a pause; (run, whether there was one). Errors as of set_intent."""
        with self._database.write(ring=True) as connection:
            run = lock(connection, run_id, if_version)
            changed = intents.resume(connection, run, self._clock())
            return fetch(connection, run_id, self._clock()), changed

    # --- count ------------------------------------------------------------------------------

    def counts_by_state(self) -> dict[RunState, int]:
        """How many runs are in each state; states without a run are absent."""
        active = (
            select(runs.c.state, func.count())
            .where(runs.c.state.in_(ACTIVE_VALUES))
            .group_by(runs.c.state)
        )
        with self._database.read() as connection:
            counts = Counter({RunState(row[0]): row[1] for row in connection.execute(active)})
            for row in connection.execute(_ENDED):
                counts[RunState(row.state)] += row.ended - row.deleted
        return dict(+counts)

    def finished_counts(self) -> dict[tuple[str, str], int]:
        """How many runs ended with each (outcome, reason), the deleted ones too: it only grows."""
        with self._database.read() as connection:
            return {(row.state, row.reason): row.ended for row in connection.execute(_ENDED)}

    def queue(self, limit: int = 1000, after: str | None = None) -> StoredPage[RunRecord]:
        """Waiting runs in the order in which they will be claimed; `after` as for `list`.

        The place of the run that ends a page is found also when it was claimed meanwhile.
        """
        query = select_runs().where(IS_WAITING).order_by(*CLAIM_ORDER).limit(limit + 1)
        with self._database.read() as connection:
            if after is not None:
                query = query.where(behind(connection, after))
            rows = connection.execute(query).all()
            records = to_records(connection, rows[:limit], self._clock())
        return StoredPage(records, cursor_of(records[-1].id) if len(rows) > limit else None)

    def next_queue_position(self, priority: int) -> int:
        """The position that a run of this priority would have if it were submitted now."""
        with self._database.read() as connection:
            query = count_waiting(runs.c.priority >= priority)
            ahead: int = connection.execute(query).scalar_one()
        return 1 + ahead
