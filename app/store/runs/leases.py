"""Leases: an agent claims a run, beats, finishes. Every write is fenced by the lease's token."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, select

from app.lifecycle import Intent, Reason, RunState
from app.planning.requirements import SlotOffer
from app.spec.script import SCRIPT
from app.store.checkpoint_rows import has_removing
from app.store.engine.clock import Clock
from app.store.engine.database import OBSERVER_PATIENCE_SECONDS, Database, retried
from app.store.jobs import order_reconciliation
from app.store.records import Beat, Document, Finish, Holder, Lease, RunRecord
from app.store.runs.beats import apply_beat
from app.store.runs.claims import choose_run, take
from app.store.runs.preemption import (
    Preemptible,
    Preemption,
    asked_before,
    find_preemption,
    order_preemption,
)
from app.store.runs.rows import fetch
from app.store.runs.transitions import Ending, end_attempt
from app.store.tables import attempts, run_documents, runs, workers
from app.store.telemetry.memory_profiles import add_measured

LOST_RETRY_SECONDS = 5.0
# Read at each beat, and to build it costs more than to execute it.
_HOLDERS = (
    select(
        runs.c.lease_token.label("token"),
        runs.c.id.label("run_id"),
        runs.c.beat,
        workers.c.id.label("worker_id"),
        workers.c.host,
        workers.c.boot_id,
        workers.c.pid,
        workers.c.start_time,
        workers.c.beat_seconds,
    )
    .join(workers, workers.c.id == runs.c.worker_id)
    .where(runs.c.state == RunState.running.value)
    .order_by(runs.c.id)
)


class Leases:
    """One lease a running run; it ends with finish or declare_lost."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @retried
    def claim(self, worker_id: int, slots: Sequence[SlotOffer]) -> Lease | None:
        """Take the first run in the queue that idle slots can train; None when none. `slots`: all
        that the worker has in hand, those included that its runs have taken.

        Claimable: queued, intent run, `retry_at` past, parent over, and what it needs is offered.
        Order: priority, place, id.
        Conflict when the worker drains or is not alive to the store.
        """
        if all(slot.is_taken for slot in slots):
            return None
        with self._database.read() as connection:
            if choose_run(connection, slots, self._clock.of(connection)) is None:
                return None  # without a writer's lock, since an idle agent asks often
        with self._database.write() as connection:
            now = self._clock.of(connection)
            chosen = choose_run(connection, slots, now, locked=True)
            return (
                None if chosen is None else take(connection, chosen[0], worker_id, chosen[1], now)
            )

    @retried
    def preempt(
        self, worker_id: int, slots: Sequence[SlotOffer], held: Sequence[Preemptible]
    ) -> list[Preemption]:
        """Have runs of a worker that allow it make way for a waiting run of higher priority that
        no idle slot fits: which of them are to save and end now. `slots`: as for `claim`.

        Never for one of equal priority. Who was stopped so is not stopped again before it has
        saved a checkpoint since, nor for the same run before that has started.
        """
        with self._database.read() as connection:
            now = self._clock.of(connection)
            asked = asked_before(connection, held)
            if find_preemption(connection, worker_id, slots, held, now) is None:
                return asked  # without a writer's lock, as in `claim`
        with self._database.write() as connection:
            now = self._clock.of(connection)
            found = find_preemption(connection, worker_id, slots, held, now, locked=True)
            return asked + ([] if found is None else order_preemption(connection, *found, now))

    @retried
    def beat(self, token: str, beat: Beat, patience_seconds: float | None = None) -> Intent:
        """Write what is new, as one transaction; what the user wants by now. LeaseLost.

        `patience_seconds`: how long to wait for others' locks, if not as usual; also of `finish`.
        """
        with self._database.write(patience_seconds=patience_seconds) as connection:
            return Intent(apply_beat(connection, token, beat, self._clock()).intent)

    @retried
    def finish(
        self, token: str, finish: Finish, patience_seconds: float | None = None
    ) -> RunRecord:
        """End the attempt; where the run goes depends on the intent as it is then. LeaseLost."""
        with self._database.write(ring=True, patience_seconds=patience_seconds) as connection:
            now = self._clock.of(connection)
            run = apply_beat(connection, token, finish.final, now)
            ending = Ending(
                reason=finish.reason,
                message=finish.message,
                exit_code=finish.exit_code,
                retry_delay_seconds=finish.retry_delay_seconds,
                policy=finish.policy,
                next_rung=finish.next_rung,
                rollback=finish.rollback,
                needs=finish.needs,
            )
            moved = end_attempt(connection, runs.c.lease_token == token, ending, now)
            if moved is not None and finish.measured is not None:
                key = (attempts.c.run_id == moved.id, attempts.c.number == moved.attempt)
                worker = connection.execute(select(attempts.c.worker).where(*key)).scalar_one()
                add_measured(connection, finish.measured, moved.id, worker, now)
            if moved is not None and (finish.untold or has_removing(connection, run.id)):
                _order_reconciliation(connection, moved, now)
            return fetch(connection, run.id, now)

    def holders(self) -> list[Holder]:
        """Every lease, with its beat counter and the process that holds it."""
        with self._database.read() as connection:
            return [Holder(*row) for row in connection.execute(_HOLDERS)]

    def scripts_at(self, host: str) -> dict[int, Document]:
        """The specs of the scripts that run on a host, by run."""
        wanted = (
            select(runs.c.id, run_documents.c.spec)
            .join(workers, workers.c.id == runs.c.worker_id)
            .join(run_documents, run_documents.c.run_id == runs.c.id)
            .where(runs.c.state == RunState.running.value, runs.c.recipe == SCRIPT)
            .where(workers.c.host == host)
            .order_by(runs.c.id)
        )
        with self._database.read() as connection:
            return {row.id: row.spec for row in connection.execute(wanted)}

    @retried
    def unlocked(self, tokens: Collection[str]) -> set[str]:
        """Those of these leases whose next beat would not have to wait for somebody's lock.

        Unavailable when nothing can be stored now.
        """
        if not tokens:
            return set()
        held = select(runs.c.lease_token).where(runs.c.lease_token.in_(tokens))
        with self._database.write(patience_seconds=OBSERVER_PATIENCE_SECONDS) as connection:
            rows = connection.execute(held.with_for_update(skip_locked=True))
            return set(rows.scalars())

    @retried
    def declare_lost(self, token: str, beat: int) -> bool:
        """End a lease whose holder is dead, if its beat counter is still as it was seen."""
        ending = Ending(
            reason=Reason.worker_lost,
            message="The worker stopped answering: its process or its host ended, or it could not "
            "reach the database.",
            exit_code=None,
            retry_delay_seconds=LOST_RETRY_SECONDS,
        )
        as_seen = and_(runs.c.lease_token == token, runs.c.beat == beat)
        with self._database.write() as connection:
            now = self._clock.of(connection)
            moved = end_attempt(connection, as_seen, ending, now)
            if moved is None:
                return False
            _order_reconciliation(connection, moved, now)
            return True


def _order_reconciliation(connection: Connection, moved: Row[Any], now: float) -> None:
    """Of a run that nobody holds now; whoever claims it again looks at its folders first."""
    if moved.state != RunState.queued:
        order_reconciliation(connection, moved.id, moved.attempt, now)
