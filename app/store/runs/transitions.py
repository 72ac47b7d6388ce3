"""How a run's row moves: every change of state or intent, each with its event."""

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Row,
    and_,
    case,
    exists,
    false,
    func,
    insert,
    literal,
    null,
    update,
)

from app.lifecycle import (
    CRASH_LOOP_LOSSES,
    REASON_POLICY,
    Intent,
    Reason,
    ReasonPolicy,
    RunState,
    finish_target,
)
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.planning.rollback import Rollback
from app.spec.script import SCRIPT
from app.store.notifications import note
from app.store.records import NextRung
from app.store.tables import TERMINAL_VALUES, attempts, events, run_documents, runs

# Why a script is not tried again that could be.
NO_RETRIES = (
    "It is not tried again: it has no retries. A script gets three if --resume says how it "
    "resumes, or once it has saved by `run.checkpoint`; `stoker run --retries N` sets a number."
)
# What a state event tells, beside where the run came from.
MOVED = (runs.c.id, runs.c.attempt, runs.c.state, runs.c.intent, runs.c.reason, runs.c.message,
         runs.c.last_event_seq)  # fmt: skip

# Of a script, whether its spec leaves it to Stoker how often it is tried again.
RETRIES_ARE_AUTO = (
    exists()
    .where(
        run_documents.c.run_id == runs.c.id,
        run_documents.c.spec["policy"]["max_retries"].as_string() == "auto",
    )
    .correlate(runs)
)

# Whether the attempt that ends has saved a checkpoint of its own.
_has_saved = (
    exists()
    .where(
        attempts.c.run_id == runs.c.id,
        attempts.c.number == runs.c.attempt,
        attempts.c.saved_checkpoints > 0,
    )
    .correlate(runs)
)


def move(connection: Connection, run: Row[Any], now: float, **changes: Any) -> None:
    """Change a locked run's state, intent, reason or message; the version and an event follow."""
    statement = (
        update(runs)
        .where(runs.c.id == run.id, runs.c.state == run.state)
        .values(version=runs.c.version + 1, last_event_seq=runs.c.last_event_seq + 1, **changes)
        .returning(*MOVED)
    )
    record_move(connection, connection.execute(statement).one(), run.state, now)


def record_move(
    connection: Connection, moved: Row[Any], source: str | None, now: float, **more: Any
) -> None:
    """The event of a move whose statement has already counted it in `last_event_seq`."""
    data = {
        "from": source,
        "to": moved.state,
        "reason": moved.reason,
        "message": moved.message,
        "intent": moved.intent,
        **more,
    }
    connection.execute(
        insert(events),
        {
            "run_id": moved.id,
            "seq": moved.last_event_seq,
            "t": now,
            "attempt": moved.attempt or None,
            "kind": "state",
            "data": data,
        },
    )
    if moved.state in TERMINAL_VALUES and moved.attempt:  # one that never began is no news
        note(connection, moved, moved.state, moved.message, now)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended; `policy` takes the place of the reason's own."""

    reason: Reason
    message: str
    exit_code: int | None
    retry_delay_seconds: float
    policy: ReasonPolicy | None = None
    next_rung: NextRung | None = None
    rollback: Rollback | None = None
    needs: Requirements = NOTHING_KNOWN


def end_attempt(
    connection: Connection, holding: ColumnElement[bool], ending: Ending, now: float
) -> Row[Any] | None:
    """End the attempt of the running run for which `holding` is true; None when there is none.

    The statement itself chooses where the run goes, from the intent as it is at that moment.
    """
    statement = (
        update(runs)
        .where(holding, runs.c.state == RunState.running.value)
        .values(_values_after(ending, now))
        .returning(*MOVED)
    )
    moved = connection.execute(statement).one_or_none()
    if moved is None:
        return None
    reason = ending.reason.value
    record_move(connection, moved, RunState.running.value, now, ended_by=reason)
    is_otherwise = ending.next_rung is not None or ending.rollback is not None
    if moved.state == RunState.queued.value or (moved.state == "paused" and is_otherwise):
        _record_retry(connection, moved, ending, now)
    connection.execute(
        update(attempts)
        .where(attempts.c.run_id == moved.id, attempts.c.number == moved.attempt)
        .values(
            state="retried" if moved.state == RunState.queued.value else moved.state,
            reason=reason,
            message=ending.message,
            finished_at=now,
            exit_code=ending.exit_code,
            next_rung=ending.next_rung and ending.next_rung.rung,
            rollback=ending.rollback and ending.rollback.as_json(),
        )
    )
    return moved


def _record_retry(connection: Connection, moved: Row[Any], ending: Ending, now: float) -> None:
    """The event of a new attempt that nobody has to ask for: why, when at the earliest, and what it
    does otherwise. That it takes less memory, or goes back, is told also where a pause comes first.
    """
    counted = (
        update(runs)
        .where(runs.c.id == moved.id)
        .values(last_event_seq=runs.c.last_event_seq + 1)
        .returning(runs.c.last_event_seq, runs.c.retries_used, runs.c.max_retries)
    )
    run = connection.execute(counted).one()
    data = {
        "reason": ending.reason.value,
        "message": ending.message,
        "delay_seconds": ending.retry_delay_seconds,
        "retries_used": run.retries_used,
        "max_retries": run.max_retries,
    }
    if (step := ending.next_rung) is not None:
        data |= {
            "message": f"{ending.message} {step.sentence}",
            "change": step.sentence,
            "ran_out": step.ran_out,
            "memory_rung": step.rung,
        }
    if (back := ending.rollback) is not None:
        change = back.sentence
        data |= {
            "message": f"{ending.message} {change}", "change": change, "rollback": back.as_json()
        }  # fmt: skip
    if moved.state == RunState.paused.value:
        data["paused"] = True  # it waits to be resumed, and no delay
    row = {"run_id": moved.id, "seq": run.last_event_seq, "t": now, "attempt": moved.attempt}
    connection.execute(insert(events), {**row, "kind": "retry", "data": data})
    if ending.reason is Reason.hang:
        again = f"{ending.message} It is tried again."
        note(connection, moved, "stalled", again, now)


def _values_after(ending: Ending, now: float) -> dict[str, Any]:
    policy = ending.policy or REASON_POLICY[ending.reason]
    is_free = policy.free
    # Progress gives the budget back: what was lost before it does not count any more.
    losses = case((_has_saved, 0), else_=runs.c.losses + (0 if is_free else 1))
    used = case((_has_saved, 0), else_=runs.c.retries_used)
    target, why = finish_cases(ending.reason, losses, used, ending.policy)
    is_queued = target == RunState.queued.value
    is_off = target.in_([RunState.queued.value, RunState.paused.value])
    is_loop = why == Reason.crash_loop.value
    has_none = and_(
        target == RunState.failed.value,
        runs.c.recipe == SCRIPT,
        runs.c.max_retries == 0,
        literal(policy.outcome == "retry"),
        RETRIES_ARE_AUTO,  # else whoever said 0 knows
    )
    retry_at = literal(now + ending.retry_delay_seconds, Double)
    # Who was preempted waits for a slot, not for a time.
    is_timed = is_queued if ending.reason is not Reason.preempted else false()
    return {
        "state": target,
        "reason": why,
        "message": case(
            (is_loop, _text(_crash_loop(ending.message))),
            (has_none, _text(f"{ending.message} {NO_RETRIES}")),
            else_=_text(ending.message),
        ),
        "losses": losses,
        "retries_used": case(
            (is_off, used + case((is_queued, 0 if is_free else 1), else_=0)),
            else_=runs.c.retries_used,  # of what is over, as it was
        ),
        "retry_at": case((is_timed, retry_at), else_=null()),
        "finished_at": case((target.in_(TERMINAL_VALUES), literal(now, Double)), else_=null()),
        "worker": case((is_off, null()), else_=runs.c.worker),
        "worker_id": None,
        "lease_token": None,
        "version": runs.c.version + 1,
        "last_event_seq": runs.c.last_event_seq + 1,
        **_raised(ending.needs),
    }


def _raised(needs: Requirements) -> dict[str, Any]:
    """What was found to be needed, where less was known until then."""
    found = {f"needs_{name}": need for name, need in asdict(needs).items() if need is not None}
    return {
        name: case((func.coalesce(runs.c[name], 0) < need, need), else_=runs.c[name])
        for name, need in found.items()
    }


def finish_cases(
    reason: Reason,
    losses: ColumnElement[int],
    used: ColumnElement[int],
    policy: ReasonPolicy | None = None,
) -> tuple[ColumnElement[str], ColumnElement[str]]:
    """`lifecycle.finish_target` as two SQL expressions, (state, reason), on a row of runs.

    `losses` is the count with the attempt that ends, `used` that of the retries before it. Built by
    asking finish_target itself about every case, so that there is one truth.
    """
    loops = losses >= CRASH_LOOP_LOSSES
    has_budget = used < runs.c.max_retries
    states, reasons = [], []
    for intent in Intent:
        for is_loop in (True, False):
            for budget in (True, False):
                state, why = finish_target(
                    reason,
                    intent,
                    retries_used=0,
                    max_retries=1 if budget else 0,
                    losses=CRASH_LOOP_LOSSES if is_loop else 0,
                    policy=policy,
                )
                when = and_(
                    runs.c.intent == intent.value,
                    loops if is_loop else ~loops,
                    has_budget if budget else ~has_budget,
                )
                states.append((when, state.value))
                reasons.append((when, why.value))
    return case(*states), case(*reasons)


def _crash_loop(message: str) -> str:
    return (
        f"{CRASH_LOOP_LOSSES} attempts in a row ended without saving progress, so it is not tried "
        f"again. The last one: {message}"
    )


def _text(message: str) -> ColumnElement[str]:
    """As the column stores it: CASE would pass it on as it came."""
    return literal(message, runs.c.message.type)


def insert_events(
    connection: Connection, run_id: int, last_seq: int, rows: list[dict[str, Any]]
) -> None:
    """Insert events that `last_event_seq` already counts: the last one gets `last_seq`."""
    first = last_seq - len(rows) + 1
    if rows:
        connection.execute(
            insert(events),
            [{"run_id": run_id, "seq": first + i, **row} for i, row in enumerate(rows)],
        )
