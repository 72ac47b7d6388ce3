"""How runs come to be: new ones, and restarts, each at most once for an idempotency key."""

from dataclasses import asdict, replace
from typing import Any, cast

from sqlalchemy import Connection, Row, func, insert, select, update

from app.errors import InvalidRequest
from app.lifecycle import TERMINAL, Intent, RunState
from app.spec.script import SCRIPT
from app.store.datasets import datasets_of, require_datasets
from app.store.engine.dialect import insert_unless_there
from app.store.records import (
    Document,
    Idempotency,
    NewRun,
    Restart,
)
from app.store.runs.expiry import expire_keys
from app.store.runs.first_weights import columns_for, columns_of_child
from app.store.runs.history import likeness_of
from app.store.runs.intents import escalate
from app.store.runs.restart_points import Origin, hold_first, require_what_was_asked
from app.store.runs.rows import lock
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
_INSERT = insert(runs).returning(runs.c.id)
_NEXT_PLACE = select(func.coalesce(func.max(runs.c.id), 0) + 1)
_INSERT_DOCUMENTS, _INSERT_DATASETS = insert(run_documents), insert(run_datasets)
_INSERT_EVENTS, _INSERT_LABELS = insert(events), insert(run_labels)


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


def insert_run(connection: Connection, new: NewRun, now: float) -> int:
    """Queue a run behind all others; its id."""
    place = connection.execute(_NEXT_PLACE).scalar_one()
    first = columns_for(connection, new.spec.get("init_from"))
    return _insert(connection, new, {**_fresh(new, now), **first, "place": place}, now)


def _insert(connection: Connection, new: NewRun, values: Document, now: float) -> int:
    """Insert a queued run with its documents, labels and first events; its id."""
    names_read = datasets_of(new)
    require_datasets(connection, names_read)
    run_id = cast("int", connection.execute(_INSERT, values).scalar_one())
    names = ("request", "spec", "provenance", "issues", "memory", "shape", "code")
    documents = {"run_id": run_id, **{name: getattr(new, name) for name in names}}
    connection.execute(_INSERT_DOCUMENTS, documents)
    reads = [{"run_id": run_id, "name": name} for name in sorted(names_read)]
    if reads:
        connection.execute(_INSERT_DATASETS, reads)
    connection.execute(_INSERT_EVENTS, _first_events(run_id, new, now))
    set_labels(connection, run_id, new.labels)
    return run_id


def _first_events(run_id: int, new: NewRun, now: float) -> list[Document]:
    data = {"from": None, "to": "queued", "reason": None, "message": None, "intent": "run"}
    told = [("state", data), *(("issue", issue) for issue in new.issues)]
    return [
        {"run_id": run_id, "seq": seq, "t": now, "kind": kind, "data": data}
        for seq, (kind, data) in enumerate(told, start=1)
    ]


def set_labels(connection: Connection, run_id: int, labels: dict[str, str]) -> None:
    """Add the rows that filters by label look at."""
    rows = [{"run_id": run_id, "key": key, "value": value} for key, value in labels.items()]
    if rows:
        connection.execute(_INSERT_LABELS, rows)


def _fresh(new: NewRun, now: float) -> Document:
    names = ("name", "notes", "labels", "priority", "mode", "dataset", "device", "gpus")
    return {
        **{name: getattr(new, name) for name in names},
        "recipe": new.recipe,
        "recipe_version": new.recipe_version,
        "owner_host": None if new.owner is None else new.owner.host,
        "owner_uid": None if new.owner is None else new.owner.uid,
        "owner_home": None if new.owner is None else new.owner.home,
        "submission": new.spec["recipe"]["environment"] if new.recipe == SCRIPT else None,
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
        "created_by": new.created_by,
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
    if new.dataset is None:  # a script stays its owner's, with the code that was submitted
        new = replace(new, code=_code_of(connection, parent.id))
    restart_of: Document = {
        "parent_id": parent.id,
        "owner_host": parent.owner_host if new.dataset is None else None,
        "owner_uid": parent.owner_uid if new.dataset is None else None,
        "owner_home": parent.owner_home if new.dataset is None else None,
        "waits_for": awaited,
        "restart_from": origin.restart_from,
        "restart_checkpoint_id": None if source is None else source.checkpoint_id,
        "restart_carry": None if source is None else source.carry,
        "carry": restart.carry,
        **columns_of_child(connection, parent, new.spec.get("init_from"), origin.carry_kind),
    }
    if parent.state in TERMINAL:
        place = connection.execute(_NEXT_PLACE).scalar_one()
        return _insert(connection, new, {**_fresh(new, now), **restart_of, "place": place}, now)
    values = {**_fresh(new, now), **restart_of, "place": parent.place}
    child_id = _insert(connection, new, values, now)
    intent = Intent.kill if restart.force else Intent.stop
    escalate(connection, parent, intent, now, message=f"Restarted as run {child_id}.")
    return child_id


def _code_of(connection: Connection, run_id: int) -> Document | None:
    wanted = select(run_documents.c.code).where(run_documents.c.run_id == run_id)
    return cast("Document | None", connection.execute(wanted).scalar())


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
