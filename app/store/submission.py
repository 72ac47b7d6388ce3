"""How runs come to be: new ones, and restarts, each at most once for an idempotency key."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any, cast

from sqlalchemy import Connection, Row, func, insert, select, update

from app.errors import InvalidRequest
from app.lifecycle import TERMINAL, Intent, RunState
from app.spec.requirements import SlotOffer
from app.store.datasets import datasets_of, require_datasets
from app.store.dialect import insert_unless_there
from app.store.expiry import expire_keys
from app.store.history import likeness_of
from app.store.intents import escalate
from app.store.offers import idle_offers
from app.store.records import (
    Document,
    Idempotency,
    NewRun,
    Restart,
    RunRecord,
    Submission,
)
from app.store.restart_points import Origin, hold_first, require_what_was_asked
from app.store.run_rows import fetch, lock, waiting_of
from app.store.tables import (
    TERMINAL_VALUES,
    events,
    idempotency_keys,
    run_datasets,
    run_documents,
    run_labels,
    runs,
)

# Built once: to build them costs more than to execute them. A restart takes its parent's place; ids
# rise, so a new run's place is behind all others.
_INSERT = insert(runs).returning(runs.c.id, runs.c.name, runs.c.notes, sort_by_parameter_order=True)
_NEXT_PLACE = select(func.coalesce(func.max(runs.c.id), 0) + 1)
_INSERT_DOCUMENTS, _INSERT_DATASETS = insert(run_documents), insert(run_datasets)
_INSERT_EVENTS, _INSERT_LABELS = insert(events), insert(run_labels)
_TOLD = tuple(RunRecord.__dataclass_fields__)


def claim_key(connection: Connection, given: Idempotency | None, now: float) -> int | None:
    """The run that this key has made already; None when the caller is to make it.

    InvalidRequest (idempotency_key_reused) when the key came with another body.
    """
    if given is None:
        return None
    expire_keys(connection, now)
    row = {"scope": given.scope, "key": given.key, "body_hash": given.body_hash, "created_at": now}
    if insert_unless_there(connection, idempotency_keys, row):
        return None
    return find_key(connection, given)


def find_key(connection: Connection, given: Idempotency) -> int | None:
    """The run that this key has made, or None. InvalidRequest as `claim_key`."""
    wanted = select(idempotency_keys).where(*_is_key(given))
    known = connection.execute(wanted).one_or_none()
    if known is None:
        return None
    if known.body_hash != given.body_hash:
        raise InvalidRequest(
            "This Idempotency-Key came before with another body, so it is not clear which run is "
            "meant. Use a new key for a new request.",
            code="idempotency_key_reused",
        )
    return cast("int", known.run_id)


def remember_key(connection: Connection, given: Idempotency | None, run_id: int) -> None:
    if given is not None:
        connection.execute(update(idempotency_keys).where(*_is_key(given)).values(run_id=run_id))


def _is_key(given: Idempotency) -> tuple[Any, ...]:
    return idempotency_keys.c.scope == given.scope, idempotency_keys.c.key == given.key


def submit(
    connection: Connection, submissions: Sequence[Submission], now: float
) -> list[tuple[RunRecord, bool]]:
    """Queue runs, each at most once for its key; (run, whether it is new) of each."""
    # In one order, since two servers may be given the same keys, and neither is to wait for the
    # other in vain.
    given = {one.idempotency for one in submissions if one.idempotency is not None}
    keys = sorted(given, key=attrgetter("scope", "key"))
    known = {key: claim_key(connection, key, now) for key in keys}
    new: list[NewRun] = []
    mine: dict[Idempotency, int] = {}
    made: list[tuple[RunRecord | int, bool]] = []  # an int: the place among the new ones
    for one in submissions:
        key = one.idempotency
        run_id = None if key is None else known[key]
        if run_id is not None:
            made.append((fetch(connection, run_id), False))
        elif key in mine:
            made.append((mine[key], False))
        else:
            made.append((len(new), True))
            if key is not None:
                mine[key] = len(new)
            new.append(one.new)
    queued = _queue(connection, new, now) if new else []
    for key, number in mine.items():
        remember_key(connection, key, queued[number].id)
    return [(queued[run] if isinstance(run, int) else run, is_new) for run, is_new in made]


def _queue(connection: Connection, new: Sequence[NewRun], now: float) -> list[RunRecord]:
    """Insert queued runs, with statements for all of them together: one costs more than a row."""
    require_datasets(connection, {name for one in new for name in datasets_of(one)})
    place = connection.execute(_NEXT_PLACE).scalar_one()
    values = [{**_fresh(one, now), "place": place + number} for number, one in enumerate(new)]
    rows = connection.execute(_INSERT, values).all()
    _insert_belongings(connection, [(row.id, one) for row, one in zip(rows, new, strict=True)], now)
    offers = idle_offers(connection)
    return [_told(one, row, offers) for one, row in zip(values, rows, strict=True)]


def _told(values: Document, row: Row[Any], offers: list[SlotOffer]) -> RunRecord:
    """A run as it was stored, with its texts as the database holds them."""
    told = {
        **row._asdict(),
        "state": RunState.queued,
        "intent": Intent.run,
        "child_ids": (),
        "waits_for_parent": False,
        "waiting": waiting_of(values, offers),
    }
    return RunRecord(**{**{name: values.get(name) for name in _TOLD}, **told})


def _insert_restarted(connection: Connection, new: NewRun, now: float, restart_of: Document) -> int:
    """Insert a queued run with its documents, labels and first events; its id."""
    require_datasets(connection, datasets_of(new))
    row = connection.execute(_INSERT, {**_fresh(new, now), **restart_of}).one()
    _insert_belongings(connection, [(row.id, new)], now)
    return cast("int", row.id)


def _insert_belongings(
    connection: Connection, new_runs: Sequence[tuple[int, NewRun]], now: float
) -> None:
    """What hangs on new runs."""
    names = ("request", "spec", "provenance", "issues", "memory", "shape")
    documents, reads, told = [], [], []
    for run_id, new in new_runs:
        documents.append({"run_id": run_id, **{name: getattr(new, name) for name in names}})
        reads += [{"run_id": run_id, "name": name} for name in sorted(datasets_of(new))]
        told += _first_events(run_id, new, now)
    connection.execute(_INSERT_DOCUMENTS, documents)
    connection.execute(_INSERT_DATASETS, reads)
    connection.execute(_INSERT_EVENTS, told)
    set_labels(connection, {run_id: new.labels for run_id, new in new_runs})


def _first_events(run_id: int, new: NewRun, now: float) -> list[Document]:
    data = {"from": None, "to": "queued", "reason": None, "message": None, "intent": "run"}
    told = [("state", data), *(("issue", issue) for issue in new.issues)]
    return [
        {"run_id": run_id, "seq": seq, "t": now, "kind": kind, "data": data}
        for seq, (kind, data) in enumerate(told, start=1)
    ]


def set_labels(connection: Connection, labels: Mapping[int, dict[str, str]]) -> None:
    """Add the rows that filters by label look at; `labels` by the id of the run."""
    rows = [
        {"run_id": run_id, "key": key, "value": value}
        for run_id, own in labels.items()
        for key, value in own.items()
    ]
    if rows:
        connection.execute(_INSERT_LABELS, rows)


def _fresh(new: NewRun, now: float) -> Document:
    names = ("name", "notes", "labels", "priority", "recipe", "mode", "dataset", "device", "gpus")
    return {
        **{name: getattr(new, name) for name in names},
        "max_retries": new.max_retries,
        **{f"needs_{name}": need for name, need in asdict(new.requirements).items()},
        "spec_version": new.spec_version,
        "accepted_risks": sorted({i["code"] for i in new.issues if i["accepted"]}),
        "state": RunState.queued.value,
        "intent": Intent.run.value,
        "version": 1,
        "attempt": 0,
        "devices": [],
        "beat": 0,
        "retries_used": 0,
        "losses": 0,
        "last_event_seq": 1 + len(new.issues),
        "log_bytes": 0,
        "likeness": likeness_of(new.spec),
        "created_at": now,
    }


def insert_restart(
    connection: Connection, restart: Restart, new: NewRun, now: float, if_version: int | None
) -> int:
    """Insert a child and ask its parent to stop, in the caller's transaction; the child's id."""
    parent = lock(connection, restart.parent_id, if_version)
    origin = Origin(parent.id, str(restart.from_), restart.carry["kind"])
    source = hold_first(connection, origin)
    awaited = _awaited(connection, parent)
    require_what_was_asked(connection, origin, source, waits=awaited is not None)
    restart_of: Document = {
        "parent_id": parent.id,
        "waits_for": awaited,
        "restart_from": origin.restart_from,
        "restart_checkpoint_id": None if source is None else source.checkpoint_id,
        "restart_carry": None if source is None else source.carry,
        "carry": restart.carry,
    }
    if parent.state in TERMINAL:
        place = connection.execute(_NEXT_PLACE).scalar_one()
        return _insert_restarted(connection, new, now, {**restart_of, "place": place})
    child_id = _insert_restarted(connection, new, now, {**restart_of, "place": parent.place})
    intent = Intent.kill if restart.force else Intent.stop
    escalate(connection, parent, intent, now, message=f"Restarted as run {child_id}.")
    return child_id


def _awaited(connection: Connection, parent: Row[Any]) -> int | None:
    """The run that must be over before a child of this parent starts: the parent while it trains,
    or what the parent, never started, still waited for itself.
    """
    if parent.state == RunState.running:
        return cast("int", parent.id)
    active = select(runs.c.id).where(
        runs.c.id == parent.waits_for, runs.c.state.not_in(TERMINAL_VALUES)
    )
    return connection.execute(active).scalar()
