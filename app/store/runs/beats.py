"""What one beat of an agent writes: progress, events, points, log text, checkpoints."""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    and_,
    bindparam,
    case,
    or_,
    select,
    update,
)

from app.errors import LeaseLost
from app.lifecycle import RunState
from app.spec.script import RETRIES
from app.store.checkpoint_rows import (
    add_checkpoints,
    damage_checkpoints,
    forget_checkpoints,
)
from app.store.columns import storable
from app.store.records import Beat, Document, Unsent
from app.store.runs.transitions import RETRIES_ARE_AUTO, insert_events
from app.store.tables import TERMINAL_VALUES, attempts, runs
from app.store.telemetry.logs import add_log_text
from app.store.telemetry.metrics import add_points

_TOLD: tuple[ColumnElement[Any], ...] = (
    runs.c.id,
    runs.c.attempt,
    runs.c.intent,
    runs.c.last_event_seq,
)
_HOLDS = and_(runs.c.lease_token == bindparam("token"), runs.c.state == RunState.running.value)
_NUMBER = bindparam("number", type_=Integer)
# Executed at each beat, and to build it costs more than to execute it.
_BEAT = (
    update(runs)
    .where(_HOLDS, or_(_NUMBER.is_(None), runs.c.beat == _NUMBER))
    .values(
        beat=runs.c.beat + 1,
        last_event_seq=runs.c.last_event_seq + bindparam("new_events"),
        log_bytes=runs.c.log_bytes + bindparam("new_bytes"),
    )
    .returning(*_TOLD)
)


# A script that saves by `stoker` knows by itself how to go on: unless its spec says how often it is
# tried again, that is from then on.
_CAN_RESUME = (
    update(runs)
    .where(
        runs.c.id == bindparam("of"),
        runs.c.max_retries == 0,
        RETRIES_ARE_AUTO,
    )
    .values(max_retries=RETRIES)
)


def apply_beat(connection: Connection, token: str, beat: Beat, now: float) -> Row[Any]:
    """Write a beat in the caller's transaction; the run's row after it.

    The first statement is the fence: LeaseLost when the token holds no running run any more. A beat
    that is stored already, though its sender was not told so, changes nothing.
    """
    text = storable(beat.log_text)
    counts = {
        "number": beat.number,
        "new_events": len(beat.events),
        "new_bytes": len(text.encode()),
    }
    run = connection.execute(
        _BEAT, {"token": token, **counts, **_run_values(beat, now)}
    ).one_or_none()
    if run is None:
        return _known(connection, token)
    events = [
        {"t": event.t, "attempt": run.attempt, "kind": event.kind, "data": event.data}
        for event in beat.events
    ]
    insert_events(connection, run.id, run.last_event_seq, events)
    saved = add_checkpoints(connection, run.id, run.attempt, beat.checkpoints)
    damage_checkpoints(connection, run.id, run.attempt, beat.damaged_checkpoints)
    forget_checkpoints(connection, run.id, beat.removed_checkpoints)
    if any(event.data.get("by_stoker") for event in beat.events):
        connection.execute(_CAN_RESUME, {"of": run.id})
    _update_attempt(connection, run, beat, text, saved)
    # Last: which points count hangs on the step that the attempt went on from.
    add_points(connection, run.id, run.attempt, beat.metric_points)
    return run


def held_run(connection: Connection, token: str) -> int:
    """The run that a lease is for; it is held until the transaction ends. LeaseLost."""
    return int(_known(connection, token).id)


def _known(connection: Connection, token: str) -> Row[Any]:
    held = select(*_TOLD).where(_HOLDS).with_for_update()
    run = connection.execute(held, {"token": token}).one_or_none()
    if run is None:
        raise LeaseLost(
            "The lease on this run has ended: it was declared lost, or its end is recorded already."
        )
    return run


def _run_values(beat: Beat, now: float) -> Document:
    values = _given(beat, "environment", "devices", "result")
    if beat.progress is not None:
        phase = beat.progress.get("phase")
        values.update(progress=beat.progress, phase=phase, progress_at=now)
    return values


def _update_attempt(
    connection: Connection, run: Row[Any], beat: Beat, text: str, saved: int
) -> None:
    named = ("applied", "environment", "devices", "resumed_from_step", "log_read", "events_read")
    values = _given(beat, *named)
    if saved:
        values["saved_checkpoints"] = attempts.c.saved_checkpoints + saved
    if text:
        values["log_bytes"] = attempts.c.log_bytes + len(text.encode())
    if not values:
        return
    log_end = connection.execute(
        update(attempts)
        .where(attempts.c.run_id == run.id, attempts.c.number == run.attempt)
        .values(values)
        .returning(attempts.c.log_bytes)
    ).scalar_one()
    if text:
        add_log_text(connection, run.id, run.attempt, log_end, text)


def add_unsent(connection: Connection, run_id: int, unsent: Unsent) -> bool:
    """Adds log text, events and points to an attempt that has ended. Changes nothing else, and
    nothing at all if the store has them already; returns whether it did not.
    """
    text = storable(unsent.log_text)
    count = len(text.encode())
    read_so_far = (
        attempts.c.run_id == run_id,
        attempts.c.number == unsent.attempt,
        attempts.c.log_read == unsent.log_from,
        attempts.c.events_read == unsent.events_from,
    )
    log_end = connection.execute(
        update(attempts)
        .where(*read_so_far)
        .values(
            log_bytes=attempts.c.log_bytes + count,
            log_read=unsent.log_to,
            events_read=unsent.events_to,
        )
        .returning(attempts.c.log_bytes)
    ).scalar()
    if log_end is None:
        return False
    is_over = runs.c.state.in_(TERMINAL_VALUES)  # then the run's own columns are fixed
    last_seq = connection.execute(
        update(runs)
        .where(runs.c.id == run_id)
        .values(
            last_event_seq=runs.c.last_event_seq + len(unsent.events),
            log_bytes=runs.c.log_bytes + case((is_over, 0), else_=count),
        )
        .returning(runs.c.last_event_seq)
    ).scalar_one()
    events = [
        {"t": event.t, "attempt": unsent.attempt, "kind": event.kind, "data": event.data}
        for event in unsent.events
    ]
    insert_events(connection, run_id, last_seq, events)
    if text:
        add_log_text(connection, run_id, unsent.attempt, log_end, text)
    add_points(connection, run_id, unsent.attempt, unsent.metric_points)
    return True


def _given(beat: Beat, *names: str) -> Document:
    return {name: getattr(beat, name) for name in names if getattr(beat, name) is not None}
