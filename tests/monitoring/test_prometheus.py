"""A real Prometheus scrapes a real service with our configuration, and sees a run come and go."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from stoker import Client

MONITORING = Path(__file__).parents[2] / "monitoring"
PATIENCE_SECONDS = 60

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus on PATH"),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def running(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, env=environment, stdout=output, stderr=output
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(60)


def eventually(ask: Callable[[], Any], what: str) -> Any:
    """The first answer that is something, asked until the patience ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer = ask()
        except httpx.TransportError:
            answer = None
        if answer:
            return answer
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


class Prometheus:
    """Asks a running Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression})
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/rules").json()
        return [rule for group in answer["data"]["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("stoker")
    return folder


@pytest.fixture(scope="module")
def exporter_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def client(home, exporter_port) -> Iterator[Client]:
    """A client of a service with the weather sample."""
    own = {
        "STOKER_HOME": str(home),
        "STOKER_PORT": "0",
        "STOKER_EXPORTER_PORT": str(exporter_port),
        "STOKER_BEAT_SECONDS": "0.2",
    }
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("STOKER_")
    } | own
    log = home / "up.log"
    with running([sys.executable, "-m", "app.cli", "up"], log, environment):
        (line,) = eventually(
            lambda: [text for text in log.read_text().splitlines() if "ready: " in text],
            "the service is ready",
        )
        sample = [sys.executable, "-m", "app.cli", "data", "sample", "weather"]
        subprocess.run(sample, env=environment, check=True, capture_output=True)
        token = (home / "token").read_text().strip()
        with Client(line.split("ready: ")[1].strip(), token) as opened:
            yield opened


@pytest.fixture(scope="module")
def prometheus(client, exporter_port, tmp_path_factory) -> Iterator[Prometheus]:
    """Our configuration with local targets and short intervals, served by the real program."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = YAML(typ="safe").load((MONITORING / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(MONITORING / rules) for rules in config["rule_files"]]
    targets = {"stoker-api": httpx.URL(client.url).netloc.decode()}
    targets["stoker-worker"] = f"127.0.0.1:{exporter_port}"
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    with (folder / "prometheus.yml").open("w") as file:
        YAML().dump(config, file)
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, folder / "prometheus.log", dict(os.environ)):
        answers = Prometheus(port)
        eventually(lambda: httpx.get(f"{answers.url}/-/ready").is_success, "Prometheus is ready")
        yield answers


def test_both_targets_answer(prometheus):
    up = eventually(lambda: prometheus.query("sum(up) == 2"), "both targets are up")
    assert up


def test_every_rule_is_evaluated_without_an_error(prometheus):
    eventually(
        lambda: prometheus.rules() and all(r["health"] != "unknown" for r in prometheus.rules()),
        "every rule was evaluated",
    )
    assert {rule["name"]: rule["health"] for rule in prometheus.rules()} == {
        rule["name"]: "ok" for rule in prometheus.rules()
    }


def test_the_series_of_a_run_come_with_it_and_vanish_with_its_end(prometheus, client):
    run_id = client.submit(
        {
            "recipe": {"kind": "sequence", "encoder": "gru", "hidden_size": 32, "patch": 12},
            "data": {"dataset": "weather"},
            "training": {"epochs": 500},
        }
    )["id"]
    one_run = f'{{run_id="{run_id}"}}'
    eventually(
        lambda: prometheus.query(f"stoker_train_iterations_total{one_run} > 0"), "the run's series"
    )
    eventually(lambda: prometheus.query(f"stoker_train_loss{one_run}"), "the run's loss")
    eventually(lambda: prometheus.query('stoker_runs{state="running"} == 1'), "one run running")
    client.act(run_id, "stop", wait_seconds=60)
    eventually(
        lambda: not prometheus.query(f"stoker_train_iterations_total{one_run}"), "the series ends"
    )
    assert eventually(
        lambda: prometheus.query('stoker_runs_finished_total{outcome="stopped"} == 1'), "counted"
    )
