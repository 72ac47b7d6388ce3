"""Rows of runs as records: what is read, what is found by a filter, what is locked for a change."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    bindparam,
    func,
    or_,
    select,
)

from app.errors import NotFound, PreconditionFailed
from app.lifecycle import TERMINAL, Intent, Reason, RunState
from app.planning.carry import STARTS_ANEW
from app.planning.requirements import Owner, Requirements, SlotOffer, Waiting, why_waiting
from app.spec.script import SCRIPT
from app.store.records import CarryKind, Document, RunRecord
from app.store.runs.claimable import (
    NEEDS,
    awaited,
    is_awaited,
    is_source,
    source,
    told_offers,
)
from app.store.tables import checkpoints, run_documents, runs

# Characters of a script's command that a record has: lists are read by people, and commands may be
# a thousand times as long.
LONGEST_ARGV = 1_000
_COMPUTED = {"child_ids", "waits_for", "waiting", "argv"}
_MATCHED = (
    *NEEDS.values(),
    *(runs.c[name] for name in ("device", "gpus", "spec_version", "recipe_version")),
    *(runs.c[name] for name in ("owner_host", "owner_uid", "owner_home")),
)
COLUMNS = (
    *(runs.c[name] for name in RunRecord.__dataclass_fields__ if name not in _COMPUTED),
    runs.c.restart_carry,
    *_MATCHED,
)

giving = runs.alias("giving")
# Of a row of runs, the first that gives its slots back for it.
_gives_way = (
    select(func.min(giving.c.id))
    .where(giving.c.preempted_for == runs.c.id, giving.c.state == RunState.running.value)
    .correlate(runs)
    .scalar_subquery()
)
starting = or_(runs.c.phase.is_(None), runs.c.phase == "starting")
retrying = runs.c.retry_at.is_not(None)
_CHILDREN = (
    select(runs.c.parent_id, runs.c.id)
    .where(runs.c.parent_id.in_(bindparam("ids", expanding=True)), runs.c.deleted_at.is_(None))
    .order_by(runs.c.id)
)
_ARGV = select(run_documents.c.run_id, run_documents.c.spec[("recipe", "argv")]).where(
    run_documents.c.run_id.in_(bindparam("ids", expanding=True))
)


@cache  # to build it costs more than to execute it
def select_runs() -> Select[Any]:
    """Runs that are not deleted, with the state of those they wait for."""
    step = select(checkpoints.c.step).where(checkpoints.c.id == runs.c.restart_checkpoint_id)
    return (
        select(
            *COLUMNS,
            awaited.c.id.label("awaited"),
            awaited.c.state.label("awaited_state"),
            source.c.id.label("source"),
            source.c.state.label("source_state"),
            step.scalar_subquery().label("restart_step"),
            _gives_way.label("gives_way"),
        )
        .select_from(runs.outerjoin(awaited, is_awaited).outerjoin(source, is_source))
        .where(runs.c.deleted_at.is_(None))
    )


_OF_ID = select_runs().where(runs.c.id == bindparam("run"))


def to_records(connection: Connection, rows: Sequence[Row[Any]], now: float) -> list[RunRecord]:
    """The records of rows of `select_runs`."""
    children: dict[int, list[int]] = {}
    ids = [row.id for row in rows]
    if ids:
        for parent_id, child_id in connection.execute(_CHILDREN, {"ids": ids}):
            children.setdefault(parent_id, []).append(child_id)
    is_any_queued = any(row.state == RunState.queued.value for row in rows)
    offers = told_offers(connection, now) if is_any_queued else []
    argv = _argv_of(connection, [row.id for row in rows if row.recipe == SCRIPT])
    return [
        _to_record(row, tuple(children.get(row.id, ())), offers, argv.get(row.id)) for row in rows
    ]


def _argv_of(connection: Connection, scripts: Sequence[int]) -> dict[int, list[str]]:
    """The commands of these scripts by id, each cut at LONGEST_ARGV."""
    if not scripts:
        return {}
    rows = connection.execute(_ARGV, {"ids": scripts})
    return {run_id: _cut(argv or ()) for run_id, argv in rows}


def _cut(argv: Sequence[str]) -> list[str]:
    kept: list[str] = []
    room = LONGEST_ARGV
    for word in argv:
        if len(word) > room:
            return [*kept, f"{word[:room]}…"]
        kept.append(word)
        room -= len(word)
    return kept


def waiting_of(values: Mapping[str, Any], offers: list[SlotOffer]) -> Waiting | None:
    """Why a queued run is not taken by an idle slot; `values` of its row."""
    run_id = values["id"]
    offers = [replace(one, blocked=None) if one.kept_for == run_id else one for one in offers]
    needs = Requirements(**{name: values[column.name] for name, column in NEEDS.items()})
    recipe = values["recipe"], values["recipe_version"]
    host, uid = values["owner_host"], values["owner_uid"]
    owner = None if host is None else Owner(host, uid, values["owner_home"])
    device, gpus, version = values["device"], values["gpus"], values["spec_version"]
    return why_waiting(device, needs, version, recipe, offers, owner, gpus)


def _to_record(
    row: Row[Any], child_ids: tuple[int, ...], offers: list[SlotOffer], argv: list[str] | None
) -> RunRecord:
    values = row._asdict()
    waiting = _made_way(values.pop("gives_way"), waiting_of(values, offers))
    for column in _MATCHED:
        del values[column.name]
    state = RunState(values.pop("state"))
    reason = values.pop("reason")
    (stems_from, of_parent), (begins_with, of_source) = (
        _active(values, name) for name in ("awaited", "source")
    )
    waits = stems_from or begins_with if state is RunState.queued else None
    if waits is not None:
        waiting = _stands_still(waits, of_parent or of_source)
    carry = _carried(values["carry"], values.pop("restart_carry"))
    step = values.pop("restart_step", None)
    if carry is not None:
        waits_for_parent = waits is not None and waits == stems_from
        carry = {**carry, "step": step, "waits_for_parent": waits_for_parent}
    return RunRecord(
        **{**values, "intent": Intent(values["intent"]), "carry": carry},
        state=state,
        reason=None if reason is None else Reason(reason),
        child_ids=child_ids,
        waits_for=waits,
        waiting=waiting if state is RunState.queued else None,
        argv=argv,
    )


def _made_way(by: int | None, waiting: Waiting | None) -> Waiting | None:
    if by is None:
        return waiting
    for_memory = waiting is not None and waiting.for_memory
    return Waiting(for_memory, f"Run {by}, of a lower priority, is giving up its slot for it.")


def _active(values: Document, name: str) -> tuple[int | None, str | None]:
    """The run of that alias and its state, where it is not over."""
    run_id, state = values.pop(name), values.pop(f"{name}_state")
    return (None, None) if state in (None, *TERMINAL) else (run_id, state)


def _stands_still(run_id: int, state: str | None) -> Waiting | None:
    """What has to be done where the run that is waited for does not go on by itself."""
    if state != RunState.paused:
        return None
    why = f"Run {run_id} is paused; `stoker resume {run_id}` lets it go on."
    return Waiting(for_memory=False, why=why)


def _carried(between: Document | None, kind: CarryKind | None) -> Document | None:
    """What the specs of parent and child allow, or less: a checkpoint from further up."""
    if between is None or kind in (None, between["kind"]):
        return between
    why = "The checkpoint is of a run further up, of which only the weights fit."
    return {**between, "kind": kind, "starts_anew": list(STARTS_ANEW), "why": why}


def fetch(connection: Connection, run_id: int, now: float) -> RunRecord:
    """The record of a run; NotFound."""
    row = connection.execute(_OF_ID, {"run": run_id}).one_or_none()
    if row is None:
        raise missing(run_id)
    return to_records(connection, [row], now)[0]


def lock(connection: Connection, run_id: int, if_version: int | None = None) -> Row[Any]:
    """The row of a run, held until the transaction ends; NotFound, PreconditionFailed."""
    wanted = select(runs).where(runs.c.id == run_id, runs.c.deleted_at.is_(None))
    row = connection.execute(wanted.with_for_update()).one_or_none()
    if row is None:
        raise missing(run_id)
    if if_version is not None and if_version != row.version:
        raise PreconditionFailed(
            f"Run {run_id} is at version {row.version}, the request was made for version "
            f"{if_version}: it changed meanwhile. Read it again, then repeat what still applies."
        )
    return row


def missing(run_id: int) -> NotFound:
    return NotFound(f"There is no run {run_id}, or it was deleted. `stoker ls` shows the runs.")
