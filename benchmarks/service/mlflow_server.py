"""MLflow's tracking server, for comparison: installed from the package registry, on its own SQLite.

As well set as was found on two cores: a write-ahead log, as Stoker has it, and one process. With
two or with four, its default, it answered fewer requests, and a single client 40 ms later.
"""

import socket
import subprocess
import venv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psutil

from app.store.engine.sqlite import driver
from benchmarks.heap import callers_environment
from benchmarks.service.bench_service import end, wait_until
from benchmarks.service.load import Target, load

WORKERS = 1
WARM_UP_SECONDS = 3  # much is imported by the first requests
RUNS = "/api/2.0/mlflow/runs"
ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
# A run that is over with its tag, as the server itself makes it.
HISTORY = (
    """INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id,
       status, start_time, end_time, source_version, lifecycle_stage, artifact_uri, experiment_id)
       WITH numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < :total)
       SELECT printf('%032x', i), 'copy-' || i, 'UNKNOWN', '', '', '', 'FINISHED', i, i + 1, '',
       'active', 'mlflow-artifacts:/0/' || printf('%032x', i) || '/artifacts', 0 FROM numbers""",
    """INSERT INTO tags (key, value, run_uuid)
       SELECT 'mlflow.runName', name, run_uuid FROM runs WHERE :total > 0""",
)


class NotInstalled(Exception):
    """MLflow cannot be had here; the message says why."""


def install(folder: Path) -> Path:
    """An environment with MLflow of its own; its folder of programs. NotInstalled."""
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-compile", "mlflow"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["pip ended without a word"]
        raise NotInstalled(f"MLflow cannot be installed here: {said[-1]}")
    return folder / "bin"


@contextmanager
def tracking_server(programs: Path, folder: Path, history: int) -> Iterator[str]:
    """The URL of a server, warm, with so many runs in its history."""
    folder.mkdir()
    store = f"sqlite:///{folder / 'mlflow.db'}"
    environment = callers_environment() | ENVIRONMENT
    subprocess.run(
        [programs / "mlflow", "db", "upgrade", store],
        env=environment, check=True, capture_output=True,
    )  # fmt: skip
    with closing(driver.connect(str(folder / "mlflow.db"))) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    port = _free_port()
    command = [
        str(programs / "mlflow"), "server", "--backend-store-uri", store,
        "--artifacts-destination", str(folder / "artifacts"),
        "--port", str(port), "--workers", str(WORKERS),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(url), "MLflow answers", psutil.Process(server.pid))
        _add_history(folder / "mlflow.db", history)
        for target in (creation(url), newest_page(url)):
            load(target, 1, WARM_UP_SECONDS)
        yield url
    finally:
        end(server)


def creation(url: str) -> Target:
    body = {"experiment_id": "0", "run_name": "queued-NUMBER", "start_time": 1}
    return Target(url, [f"{RUNS}/create"], "POST", body)


def newest_page(url: str) -> Target:
    body = {"experiment_ids": ["0"], "max_results": 50}
    return Target(url, [f"{RUNS}/search"], "POST", body)


def _add_history(database: Path, total: int) -> None:
    with closing(driver.connect(str(database))) as connection:
        for statement in HISTORY:
            connection.execute(statement, {"total": total})
        connection.commit()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False
