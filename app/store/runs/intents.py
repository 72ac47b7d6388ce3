"""What a user wants of a run: stop, kill, pause, resume. Decided on a locked row."""

from typing import Any

from sqlalchemy import Connection, Row, exists, select

from app.errors import ActionNotAllowed
from app.lifecycle import REQUESTED, TERMINAL, Intent, RunState, allowed_actions
from app.store.jobs import order_reconciliation
from app.store.runs.transitions import move
from app.store.tables import checkpoints

DONE = {"pause": "paused", "stop": "stopped", "kill": "killed", "resume": "resumed"}
RANK = {intent: rank for rank, intent in enumerate(Intent)}


def want(
    connection: Connection,
    run: Row[Any],
    wanted: Intent,
    now: float,
    *,
    lose_progress: bool = False,
) -> bool:
    """Set the intent of a locked run; False when it is so already. ActionNotAllowed.

    `lose_progress`: pause also a script that has saved nothing to go on from.
    """
    if _is_so_already(run, wanted):
        return False
    _require(run, wanted.value)
    if wanted is Intent.pause and run.dataset is None and not lose_progress:
        _require_saved(connection, run)
    escalate(connection, run, wanted, now)
    return True


def escalate(
    connection: Connection, run: Row[Any], wanted: Intent, now: float, message: str | None = None
) -> None:
    """Raise the intent of a locked run that is not over; without a lease it moves at once."""
    if RANK[wanted] <= RANK[Intent(run.intent)] and run.state == RunState.running:
        return
    if run.state == RunState.running:
        move(connection, run, now, intent=wanted.value)
        return
    target = RunState.paused if wanted is Intent.pause else RunState.stopped
    move(
        connection,
        run,
        now,
        state=target.value,
        intent=wanted.value,
        reason=REQUESTED[wanted].value,
        message=message,
        retry_at=None,
        finished_at=now if target in TERMINAL else None,
    )
    if run.attempt:  # its last worker may have been lost, and nobody looks until it goes on
        order_reconciliation(connection, run.id, run.attempt, now)


def resume(connection: Connection, run: Row[Any], now: float) -> bool:
    """Withdraw a pause of a locked run; False when there is none to withdraw. ActionNotAllowed.

    A person wants it to go on: what was lost before does not count towards a crash loop any more.
    """
    if run.state not in TERMINAL and run.intent == Intent.run:
        return False
    _require(run, "resume")
    if run.state == RunState.running:
        move(connection, run, now, intent=Intent.run.value, losses=0)
    else:
        move(
            connection,
            run,
            now,
            state=RunState.queued.value,
            intent=Intent.run.value,
            reason=None,
            message=None,
            losses=0,
        )
    return True


def _require_saved(connection: Connection, run: Row[Any]) -> None:
    """Of a script that runs: only it can save, and what it has not saved is lost by a pause."""
    of_run = checkpoints.c.run_id == run.id, checkpoints.c.state == "saved"
    if (
        run.state != RunState.running
        or connection.execute(select(exists().where(*of_run))).scalar()
    ):
        return
    raise ActionNotAllowed(
        f"Run {run.id} is a script of which no whole checkpoint was seen: a pause would lose what "
        f"it has done, and resume would start it anew. `stoker stop {run.id}` ends it; `stoker "
        f"pause {run.id} --lose-progress` pauses it all the same. Once it has saved where its "
        "--checkpoints say, or by stoker.init(), it can be paused.",
        code="nothing_to_resume_from",
        allowed_actions=[verb for verb in _verbs(run) if verb != "pause"],
    )


def _verbs(run: Row[Any]) -> list[str]:
    return allowed_actions(RunState(run.state), Intent(run.intent))


def _is_so_already(run: Row[Any], wanted: Intent) -> bool:
    stops = wanted in (Intent.stop, Intent.kill)
    if run.state == RunState.stopped:
        return stops
    if run.state == RunState.paused:
        return wanted is Intent.pause
    if run.state in TERMINAL:
        return False
    return run.intent == wanted or (wanted is Intent.stop and run.intent == Intent.kill)


def _require(run: Row[Any], verb: str) -> None:
    allowed = _verbs(run)
    if verb in allowed:
        return
    now = run.state if run.intent == Intent.run or run.state != RunState.running else run.intent
    raise ActionNotAllowed(
        f"Run {run.id} cannot be {DONE[verb]}: it {_doing(now)}. Possible now: "
        f"{', '.join(allowed)} (POST /runs/{run.id}/{allowed[0]}).",
        allowed_actions=allowed,
    )


def _doing(state_or_intent: str) -> str:
    if state_or_intent in TERMINAL:
        return f"has {state_or_intent}"
    asked = {"pause": "about to pause", "stop": "about to stop", "kill": "being killed"}
    return f"is {asked.get(state_or_intent, state_or_intent)}"
