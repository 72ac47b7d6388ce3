"""The API under load: runs created and listed by 1 and 16 clients, beside MLflow's tracking server.

After a history of a thousand runs and after one of a million; all take turns, in rounds.
"""

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.settings import load_settings
from app.store import open_store
from app.store.engine import sqlite
from benchmarks.figures import Figure
from benchmarks.service import mlflow_server
from benchmarks.service.bench_service import BenchService, end, spec, start_part, wait_until
from benchmarks.service.load import Load, Target, is_there, load
from benchmarks.service.long_history import add_copies

SHORT, LONG = HISTORIES = (1_000, 1_000_000)
# By how many clients, and for how many seconds at a time.
CLIENTS = {1: 1, 16: 2}
ROUNDS = 5
CREATE, NEWEST, PAGES = "create", "newest 50", "pages by all filters"
STOKER, MLFLOW = "Stoker", "MLflow"
COMMAND = "python -m benchmarks api"
TIMES_MLFLOW = 3.0
CREATE_P99_MILLISECONDS = 250.0
LONG_TO_SHORT_P99 = 1.5


@dataclass(frozen=True)
class Cell:
    """What is measured in every round."""

    service: str
    work: str
    history: int
    clients: int

    def __str__(self) -> str:
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{self.service}: {self.work}, {clients}, {self.history:,} runs before"


Loads = dict[Cell, list[Load]]
# A page takes it a second of a core, and it goes on with what nobody waits for any more.
TOO_LONG = Cell(MLFLOW, NEWEST, LONG, 16)
SETTLE_SECONDS = 1.0


def measure(service: BenchService) -> list[Figure]:
    """What is not there, wrk or MLflow, is left out, and a line of the table says so."""
    if not is_there():
        return [_left_out("the API under load", "wrk is not on PATH (Debian: apt install wrk)")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stoker-load-")))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        installing = pool.submit(mlflow_server.install, folder / "mlflow")
        targets: dict[tuple[str, str, int], Target] = {}
        run_id = _ended_run(service)
        for history in HISTORIES:
            home = folder / f"home-{history}"
            url, token = stack.enter_context(_with_history(service, home, run_id, history))
            targets |= _stoker_targets(url, token, history)
        missing = []
        try:
            programs = installing.result()
        except mlflow_server.NotInstalled as error:
            missing = [_left_out(MLFLOW, str(error))]
        else:
            for history in HISTORIES:
                own = folder / f"mlflow-{history}"
                url = stack.enter_context(mlflow_server.tracking_server(programs, own, history))
                targets[MLFLOW, CREATE, history] = mlflow_server.creation(url)
                targets[MLFLOW, NEWEST, history] = mlflow_server.newest_page(url)
        return _figures(_rounds(targets)) + missing


def _ended_run(service: BenchService) -> int:
    """A run that has trained and is over, for the histories to be copies of."""
    with service.worker():
        run_id = int(service.client.submit(spec("first", epochs=1))["id"])
        for _ in service.client.watch(run_id):  # until its end
            pass
    return run_id


@contextmanager
def _with_history(
    service: BenchService, home: Path, run_id: int, total: int
) -> Iterator[tuple[str, str]]:
    """Address and token of an API of its own on a copy of the database, with so many runs."""
    home.mkdir()
    sqlite.copy(service.home / "stoker.db", home / "stoker.db")
    token = (service.home / "token").read_text()
    (home / "token").write_text(token)
    with closing(open_store(load_settings(home=home))) as store:
        add_copies(store, run_id, total)
    api = start_part("api", home, {**service.environment, "STOKER_HOME": str(home)})
    try:
        written = home / "api.json"
        wait_until(written.exists, "the API writes its address", psutil.Process(api.pid))
        yield json.loads(written.read_text())["url"], token.strip()
    finally:
        end(api)


def _stoker_targets(url: str, token: str, history: int) -> dict[tuple[str, str, int], Target]:
    filters = (
        f"after={history // 2}", "state=failed", "recipe=sequence", "label=sweep%3Ds7",
        "status=succeeded&label=sweep", "q=copy",
    )  # fmt: skip
    request = spec("queued-NUMBER", epochs=1)
    return {
        (STOKER, CREATE, history): Target(url, ["/runs"], "POST", request, token),
        (STOKER, NEWEST, history): Target(url, ["/runs"], token=token),
        (STOKER, PAGES, history): Target(url, [f"/runs?{one}" for one in filters], token=token),
    }


def _rounds(targets: dict[tuple[str, str, int], Target]) -> Loads:
    """Every other round in the other order."""
    cells = [
        (Cell(*key, clients), target)
        for clients in CLIENTS
        for key, target in sorted(targets.items(), key=lambda item: item[0][1:])
    ]
    cells = [(cell, target) for cell, target in cells if cell != TOO_LONG]
    loads: Loads = defaultdict(list)
    for number in range(ROUNDS):
        for cell, target in cells if number % 2 == 0 else reversed(cells):
            loads[cell].append(load(target, cell.clients, CLIENTS[cell.clients]))
            if cell.service == MLFLOW:
                time.sleep(SETTLE_SECONDS)
    return loads


def _figures(loads: Loads) -> list[Figure]:
    figures = [figure for cell, found in loads.items() for figure in _of_cell(cell, found)]
    for clients in CLIENTS:
        for work in (NEWEST, PAGES):
            short, long = (loads[Cell(STOKER, work, history, clients)] for history in HISTORIES)
            name = f"{work}, by {clients}: p99 after {LONG:,} runs over that after {SHORT:,}"
            ratios = [a.p99 / b.p99 for a, b in zip(long, short, strict=True)]
            figures.append(_figure(name, "", ratios, LONG_TO_SHORT_P99))
    errors = sum(one.errors for cell, found in loads.items() for one in found
                 if cell.service == STOKER)  # fmt: skip
    figures.append(Figure("errors of Stoker", float(errors), "", 0.0, ROUNDS, COMMAND))
    return figures + _beside_mlflow(loads)


def _of_cell(cell: Cell, found: Sequence[Load]) -> list[Figure]:
    is_bound = cell.service == STOKER and cell.work == CREATE
    bound = CREATE_P99_MILLISECONDS if is_bound else None
    return [
        _figure(f"{cell}", "/s", [one.rate for one in found]),
        _figure(f"{cell}, half within", "ms", [one.p50 for one in found]),
        _figure(f"{cell}, 99 % within", "ms", [one.p99 for one in found], bound),
    ]


def _beside_mlflow(loads: Loads) -> list[Figure]:
    """Of the rounds in which MLflow answered at all."""
    figures = []
    for cell, found in loads.items():
        if cell.service != MLFLOW:
            continue
        ours = loads[Cell(STOKER, cell.work, cell.history, cell.clients)]
        pairs = zip(ours, found, strict=True)
        ratios = [mine.rate / theirs.rate for mine, theirs in pairs if theirs.rate]
        if ratios:
            bound = TIMES_MLFLOW if cell.work == CREATE and cell.clients > 1 else None
            name = f"Stoker's rate over {cell}"
            figures.append(_figure(name, "", ratios, bound, at_least=True))
    return figures


def _figure(
    name: str,
    unit: str,
    values: Sequence[float],
    bound: float | None = None,
    *,
    at_least: bool = False,
) -> Figure:
    """The median of the rounds."""
    spread = min(values), max(values)
    value = statistics.median(values)
    return Figure(name, value, unit, bound, len(values), COMMAND, spread, at_least)


def _left_out(what: str, why: str) -> Figure:
    return Figure(f"{what} was left out: {why}", 0.0, "", None, 0, COMMAND)
