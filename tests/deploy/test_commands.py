"""What the images do, done without Docker: install in a plain environment, start, check, stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START_SECONDS = 60


@pytest.fixture(scope="module")
def api_bin(tmp_path_factory) -> Path:
    """The programs of an environment with what the API's image installs: no worker extra."""
    folder: Path = tmp_path_factory.mktemp("api-image")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(
        [ROOT / ".ci/install", "postgres", folder / "environment"],
        env=environment,
        check=True,
        capture_output=True,
        timeout=300,
    )
    return folder / "environment/bin"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass(frozen=True)
class Part:
    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    log: Path

    def await_health(self, command: list[str]) -> None:
        """Repeat the image's own health check until it succeeds."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            check = subprocess.run(
                [sys.executable, *command[1:]],
                env=self.environment,
                capture_output=True,
                check=False,
            )
            if check.returncode == 0:
                return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)


@contextmanager
def started(program: Path, part: str, home: Path, **settings: str) -> Iterator[Part]:
    """`stoker PART` as the image starts it; SIGTERM at the end must end it well."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("STOKER_")},
        **{f"STOKER_{name}": value for name, value in settings.items()},
        "STOKER_HOME": str(home),
    }
    log = home / f"{part}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, part], cwd=home, env=environment, stdout=output, stderr=output
        )
    try:
        yield Part(process, environment, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.minutes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_api_image_has_no_torch_and_serves(api_bin, health_commands, tmp_path):
    found = subprocess.run(
        [
            *(api_bin / "python", "-c"),
            "import json, app.api.main, importlib.util as u;"
            "print(json.dumps([n for n in ('torch', 'h5py', 'numpy') if u.find_spec(n)]))",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout) == []
    port = str(free_port())
    with started(api_bin / "stoker", "api", tmp_path, HOST="0.0.0.0", PORT=port) as api:
        api.await_health(health_commands["api"])
        token = tmp_path / "token"
        assert token.stat().st_mode & 0o077 == 0


@pytest.mark.minutes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_api_image_says_what_a_worker_needs(api_bin, tmp_path):
    refused = subprocess.run(
        [api_bin / "stoker", "worker"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert "stoker[worker]" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_worker_image_starts_and_ends_on_sigterm(health_commands, tmp_path):
    program = Path(sys.executable).with_name("stoker")
    port = str(free_port())
    with started(program, "worker", tmp_path, EXPORTER_PORT=port) as worker:
        worker.await_health(health_commands["worker"])
