"""How fast runs like a new one were: the guard reckons its time and its checkpoints with it."""

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from statistics import median
from typing import Any

from sqlalchemy import Row, Select, and_, bindparam, select

from app.lifecycle import RunState
from app.planning.pace import Pace
from app.store.engine.database import Database
from app.store.records import Document
from app.store.tables import attempts, has_begun, runs

# The newest runs alike that are looked at, and those of them that count.
COMPARED, COUNTED = 50, 10
# What an attempt must have trained for its pace to count: the first steps are slower than others.
LEAST_STEPS, LEAST_SECONDS = 100, 60.0
# Runs are alike that agree in these: they take the same time for a step.
ALIKE = (
    ("recipe",),
    ("data", "dataset"),
    ("data", "inputs"),
    ("data", "targets"),
    ("data", "loader"),
    ("training", "batch_size"),
    ("training", "gradient_accumulation_steps"),
    *(("runtime", name) for name in ("precision", "compile", "deterministic", "threads")),
    ("runtime", "cuda_graphs"),
)
LIKENESS_DIGITS = 32
WRITTEN = ("totals", "written_seconds")
TRAINING_PARTS = ("data_wait", "h2d", "compute", "sync")


_NEWEST = (
    select(runs.c.id)
    .where(runs.c.likeness == bindparam("likeness"), has_begun)
    .order_by(runs.c.id.desc())
    .limit(COMPARED)
    .subquery()
)
# Runs alike, newest first, with the attempt that the progress of each tells of. Built once: to
# build it costs more than to execute it.
_FIGURES: Select[Any] = (
    select(
        runs.c.id,
        runs.c.state,
        runs.c.progress,
        runs.c.environment,
        attempts.c.started_at,
        attempts.c.finished_at,
        attempts.c.saved_checkpoints,
    )
    .join(_NEWEST, _NEWEST.c.id == runs.c.id)
    .join(attempts, and_(attempts.c.run_id == runs.c.id, attempts.c.number == runs.c.attempt))
    .where(runs.c.progress_at.is_not(None), runs.c.deleted_at.is_(None))
    .order_by(runs.c.id.desc())
)


class History:
    """Read from the last attempts of runs: what their progress says they spent their time on."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def like(self, spec: Document, kind: str, name: str) -> Pace | None:
        """Medians over the newest runs that are alike and were on any CPU, or a GPU of that name.

        None: there is no such run. `kind`: cpu or cuda.

        Reads a bounded number of rows through an index, however many runs there are.
        """
        with self._database.read() as connection:
            # Looked at one by one: their documents take longer to decode than the rest.
            rows = connection.execute(_FIGURES, {"likeness": likeness_of(spec)})
            telling = (
                row for row in rows if _is_on(row.environment, kind, name) and _is_telling(row)
            )
            alike = list(islice(telling, COUNTED))
            rows.close()
        return _medians(alike) if alike else None


def likeness_of(spec: Document) -> str:
    """The same text for specs that are alike."""
    told = json.dumps([_at(spec, keys) for keys in ALIKE], sort_keys=True)
    return sha256(told.encode()).hexdigest()[:LIKENESS_DIGITS]


def _at(document: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _is_on(environment: Document | None, kind: str, name: str) -> bool:
    if environment is None:
        return False
    if environment.get("cuda") is None:
        return kind == "cpu"
    return kind == "cuda" and environment.get("device") == name


def _is_telling(row: Row[Any]) -> bool:
    """Whether the progress is of this attempt and it trained for long enough."""
    if row.progress.get("phase") == "starting":
        return False  # it still is that of the attempt before
    steps = _at(row.progress, ("totals", "train_iterations")) or 0
    seconds = _trained_seconds(row)
    return steps > 0 and seconds > 0 and (steps >= LEAST_STEPS or seconds >= LEAST_SECONDS)


def _trained_seconds(row: Row[Any]) -> float:
    return sum(_spent(row, part) for part in TRAINING_PARTS)


def _spent(row: Row[Any], part: str) -> float:
    return float(_at(row.progress, ("phase_seconds", part)) or 0.0)


def _medians(alike: list[Row[Any]]) -> Pace:
    evaluations = [
        (_spent(row, "eval") / row.progress["totals"]["eval_samples"], _rate(row))
        for row in alike
        if row.progress["totals"].get("eval_samples")
    ]
    return Pace(
        runs=tuple(row.id for row in alike),
        iterations_per_second=median(map(_rate, alike)),
        checkpoint_seconds=_median(
            _spent(row, "checkpoint") / row.saved_checkpoints
            for row in alike
            if row.saved_checkpoints
        ),
        written_seconds=_median(
            seconds / row.saved_checkpoints
            for row in alike
            if row.saved_checkpoints and (seconds := _at(row.progress, WRITTEN))
        ),
        evaluation_seconds=_median(seconds for seconds, _ in evaluations),
        least_evaluation_steps=min((seconds * rate for seconds, rate in evaluations), default=None),
        other_seconds=_median(_beside(alike)),
        compiling_seconds=_median(
            seconds for row in alike if (seconds := _spent(row, "graph_build"))
        ),
    )


def _rate(row: Row[Any]) -> float:
    return float(row.progress["totals"]["train_iterations"] / _trained_seconds(row))


def _beside(alike: list[Row[Any]]) -> Iterator[float]:
    for row in alike:
        if row.state == RunState.succeeded.value and row.finished_at is not None:
            counted = _trained_seconds(row) + _spent(row, "checkpoint") + _spent(row, "eval")
            yield max(0.0, row.finished_at - row.started_at - counted)


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None
