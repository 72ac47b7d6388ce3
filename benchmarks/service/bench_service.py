"""A service for measuring: `stoker api` and `stoker worker` as processes, in a home of its own."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.heap import callers_environment
from stoker import Client

START_SECONDS = 60.0
END_SECONDS = 90.0
POLL_SECONDS = 0.02
Document = dict[str, Any]


@dataclass
class BenchService:
    """The API, running; a worker is there while `worker()` is open."""

    home: Path
    environment: dict[str, str]
    api: psutil.Process
    client: Client

    @contextmanager
    def worker(self) -> Iterator[psutil.Process]:
        """A worker until the block ends; gives the agent's process."""
        process = start_part("worker", self.home, self.environment)
        try:
            agent = psutil.Process(process.pid)
            wait_until(self._has_worker, "the worker registers", agent)
            yield agent
        finally:
            end(process)

    def _has_worker(self) -> bool:
        return any(worker["state"] == "alive" for worker in self.client.workers()["data"])

    def prepare_data(self) -> None:
        """Build the weather sample and have the worker inspect it."""
        subprocess.run(
            [sys.executable, "-m", "app.cli", "data", "sample", "weather", "--json"],
            env=self.environment,
            cwd=self.home,
            check=True,
            capture_output=True,
        )

    def wait_for_training(self, run_id: int) -> None:
        """Until the run has taken its first steps."""
        wait_until(lambda: is_training(self.client.run(run_id)), "the run trains", self.api)

    @contextmanager
    def long_run(self) -> Iterator[Document]:
        """A run that trains for as long as the block needs it."""
        request = spec("long", epochs=1000)
        run_id = self.client.submit(request)["id"]
        try:
            self.wait_for_training(run_id)
            yield self.client.run(run_id)
        finally:
            self.client.act(run_id, "kill", wait_seconds=30)


def spec(name: str, *, epochs: int) -> Document:
    """The request of the demo's model, on the weather sample."""
    return {
        "name": name,
        "recipe": {"kind": "sequence", "encoder": "lstm", "hidden_size": 64, "patch": 6},
        "data": {"dataset": "weather", "split": {"validation_fraction": 0.25}},
        "training": {"epochs": epochs, "batch_size": 128},
    }


def is_training(run: Document) -> bool:
    """Whether the run is in its training phase and its rate is known."""
    progress = run["progress"] or {}
    return progress.get("phase") == "training" and bool(progress.get("iterations_per_second"))


@contextmanager
def bench_service() -> Iterator[BenchService]:
    """Start the API on a free port; at the end everything is gone."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        home = Path(folder)
        own = {"STOKER_HOME": folder, "STOKER_PORT": "0", "STOKER_EXPORTER_PORT": "0"}
        others = {k: v for k, v in callers_environment().items() if not k.startswith("STOKER_")}
        environment = others | own
        api = start_part("api", home, environment)
        try:
            process = psutil.Process(api.pid)
            wait_until((home / "api.json").exists, "the API writes its address", process)
            url = json.loads((home / "api.json").read_text())["url"]
            with Client(url, (home / "token").read_text().strip()) as client:
                yield BenchService(home, environment, process, client)
        finally:
            end(api)


def wait_until(done: Callable[[], bool], what: str, process: psutil.Process) -> None:
    """Poll until it is so; RuntimeError when the process ends first or it takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not done():
        if process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain: {what}")
        time.sleep(POLL_SECONDS)


def start_part(part: str, home: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (home / f"{part}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "app.cli", part],
            env=environment,
            cwd=home,
            stdout=log,
            stderr=log,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for what does not end in time."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
