"""A whole Stoker for tests: real API and agent processes on a home of their own."""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import h5py
import httpx
import numpy as np
import psutil

from tests.forking import Forked, Starter

DEADLINE_SECONDS = 90.0
ACTIVE = ("queued", "running")
T = TypeVar("T")
Process = subprocess.Popen[bytes] | Forked
PROGRAMS = {"api": ["-m", "app.cli", "api"], "agent": ["-m", "worker"]}


@cache
def starter() -> Starter:
    """Of APIs and agents, for all tests of this process."""
    starter = Starter("tests.services").__enter__()
    atexit.register(starter.__exit__)
    return starter


class Service:
    """Starts and kills the real processes, and speaks HTTP with them."""

    def __init__(self, home: Path, *, python: str = sys.executable, **settings: str) -> None:
        self.home = home
        self.python = python
        self.environment = os.environ | {
            "STOKER_HOME": str(home),
            "STOKER_PORT": "0",
            "STOKER_EXPORTER_PORT": "0",
            "STOKER_BEAT_SECONDS": "0.2",
            "COLUMNS": "1000",  # tests look for sentences, which are broken into lines
            "STOKER_STOP_GRACE_SECONDS": "20",
            **settings,
        }
        self.processes: list[Process] = []
        self.http: httpx.Client = httpx.Client()

    def start_api(self) -> Process:
        """Start the API and connect; returns when it answers that it is alive."""
        address = self.home / "api.json"
        address.unlink(missing_ok=True)
        api = self._start("api")
        eventually(address.exists, "the API writes its address")
        url = eventually(lambda: _read_json(address), "the address is complete")["url"]
        token = (self.home / "token").read_text().strip()
        self.http.close()
        self.http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60
        )
        eventually(lambda: self._alive(), "the API answers")
        return api

    def start_agent(self, *program: str) -> Process:
        """Start an agent, the product's or another program; returns when it is registered."""
        known = self._alive_workers()
        agent = self._start("agent", *program)
        eventually(lambda: self._alive_workers() - known, "the agent registers")
        return agent

    def register(self, name: str, path: str) -> dict[str, Any]:
        answer = self.http.post("/datasets", params={"wait": 60}, json={"name": name, "path": path})
        assert answer.status_code in (200, 201, 202), answer.text
        dataset: dict[str, Any] = self.http.get(f"/datasets/{name}", params={"wait": 60}).json()
        return dataset

    def submit(self, spec: dict[str, Any]) -> int:
        answer = self.http.post("/runs", json=spec)
        assert answer.status_code == 201, answer.text
        return int(answer.json()["id"])

    def run(self, run_id: int) -> dict[str, Any]:
        answer = self.http.get(f"/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def wait_for_end(self, run_id: int) -> dict[str, Any]:
        """The run once it is terminal or paused."""
        return eventually(
            lambda: run if (run := self.run(run_id))["state"] not in ACTIVE else None,
            f"run {run_id} ends",
        )

    def wait_for_step(self, run_id: int, step: int) -> dict[str, Any]:
        """The run once it has trained past `step`; fails when it ends before."""

        def reached() -> dict[str, Any] | None:
            run = self.run(run_id)
            assert run["state"] in ACTIVE, run
            return run if ((run["progress"] or {}).get("step") or 0) >= step else None

        return eventually(reached, f"run {run_id} trains past step {step}")

    def losses(self, run_id: int) -> bytes:
        return (self.home / "artifacts" / "runs" / str(run_id) / "losses.csv").read_bytes()

    def trainer(self) -> psutil.Process:
        """The one trainer process of this service."""
        return eventually(lambda: self._process("worker.trainer"), "a trainer runs")

    def launcher(self) -> psutil.Process:
        return eventually(lambda: self._process("worker.launch.launcher"), "a launcher runs")

    def loader_processes(self) -> list[psutil.Process]:
        """Those that the trainers of this service have spawned to read."""
        return [p for p in self.left_running() if "--multiprocessing-fork" in _command(p)]

    @contextmanager
    def held(self) -> Iterator[None]:
        """The trainer stands still meanwhile, so that a short run is not over too soon."""
        trainer = self.trainer()
        trainer.suspend()
        try:
            yield
        finally:
            with suppress(psutil.NoSuchProcess):  # it was killed meanwhile
                trainer.resume()

    def stop(self, process: Process) -> None:
        """Drain one of the processes, and wait for its end."""
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=DEADLINE_SECONDS)

    def left_running(self) -> list[psutil.Process]:
        """Every process that still belongs to this home, and those that were forked by this
        service, which do not show it.
        """
        forked = {p.pid for p in self.processes if isinstance(p, Forked) and p.poll() is None}
        every = psutil.process_iter()
        return [p for p in every if p.pid in forked or str(self.home) in _home_of(p)]

    def close(self) -> None:
        """Drain what still runs, and end it for good."""
        self.http.close()
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for leftover in self.left_running():
            leftover.kill()

    def _alive(self) -> bool:
        try:
            return self.http.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def _alive_workers(self) -> set[int]:
        workers = self.http.get("/workers").json()["data"]
        return {worker["id"] for worker in workers if worker["state"] == "alive"}

    def _process(self, module: str) -> psutil.Process | None:
        return next((p for p in self.left_running() if module in _command(p)), None)

    def _start(self, name: str, *program: str) -> Process:
        self.home.mkdir(parents=True, exist_ok=True)
        path = self.home / f"{name}.log"
        if self.python == sys.executable and not program:
            self.processes.append(starter().start(name, self.environment, path))
        else:
            command = [self.python, *(program or PROGRAMS[name])]
            with path.open("ab") as log:
                self.processes.append(
                    subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
                )
        return self.processes[-1]


def eventually(probe: Callable[[], T | None], what: str) -> T:
    """The first truthy answer of `probe`; fails with `what` after the deadline."""
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        answer = probe()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"It did not happen that {what}.")


def write_waves(path: Path, samples: int = 600) -> Path:
    """A small real dataset: noisy waves, windows of 24 steps × 3 features, horizon 4."""
    rng = np.random.Generator(np.random.Philox(7))
    time_axis = np.arange(samples + 28)
    series = np.stack([np.sin(time_axis / period) for period in (3.0, 7.0, 11.0)], axis=1)
    series += 0.1 * rng.standard_normal(series.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        windows = np.stack([series[i : i + 24] for i in range(samples)])
        targets = np.stack([series[i + 24 : i + 28, 0] for i in range(samples)])
        file["features"] = windows.astype("float32")
        file["targets"] = targets.astype("float32")
    return path


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        return None
    return document


def _home_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("STOKER_HOME", "") + " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
