"""A home of its own for each test, and real services: the API alone, or all that `up` starts."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from stoker import Client
from tests.e2e.service import eventually, starter, write_waves

SPEC = {
    "name": "waves",
    "recipe": {"kind": "sequence", "hidden_size": 8, "patch": 4},
    "data": {"dataset": "waves"},
    "training": {"max_steps": 12, "epochs": 3},
    "runtime": {"device": "cpu", "threads": 1},
}
# So wide that sentences are not broken into lines: tests look for them.
WHOLE = 1_000
# Long enough to be stopped in the middle.
LONG = {**SPEC, "name": "long", "training": {"epochs": 100_000}}


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        assert self.out, f"It printed nothing, ended with {self.code}, and said: {self.err}"
        return json.loads(self.out)


def environment_of(home: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    return others | {
        "STOKER_HOME": str(home),
        "STOKER_PORT": "0",
        "STOKER_EXPORTER_PORT": "0",
        "STOKER_BEAT_SECONDS": "0.2",
        "COLUMNS": str(WHOLE),
        "OMP_NUM_THREADS": "1",
    }


def stoker(home: Path, *arguments: str, cwd: Path | None = None, text: str = "") -> Answer:
    """Run the real command as a child process."""
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        env=environment_of(home),
        capture_output=True,
        text=True,
        input=text,
        cwd=cwd,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home where nothing has been started; this process's settings point to it."""
    return use_home(tmp_path / "home", monkeypatch)


def use_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("STOKER_")]:
        monkeypatch.delenv(name)
    for name, value in environment_of(home).items():
        if name.startswith("STOKER_"):
            monkeypatch.setenv(name, value)
    return home


@pytest.fixture
def cli():
    """Call a command in this process."""

    def call(*arguments: str, text: str | None = None, columns: int | None = WHOLE) -> Answer:
        """`columns`: as COLUMNS is set; None: it is not."""
        environment = {"COLUMNS": None if columns is None else str(columns)}
        result = CliRunner().invoke(app, list(arguments), input=text, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception  # users see a sentence for it; here it is a defect
        return Answer(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture(scope="session")
def api_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running API without a worker: runs stay queued. The dataset `waves` is known."""
    home = tmp_path_factory.mktemp("api") / "home"
    write_waves(home / "data" / "waves.h5")
    (home / "presets").mkdir()
    (home / "presets" / "tiny.toml").write_text(
        'description = "small batches"\n[spec.training]\nbatch_size = 4\n'
    )
    with serving(home):
        _declare_ready(home)
        yield home


@contextmanager
def serving(home: Path) -> Iterator[None]:
    """An API of this home, which exists."""
    process = starter().start("api", environment_of(home), home / "api.log")
    try:
        eventually((home / "api.json").exists, "the API writes its address")
        eventually(lambda: _answers(home), "the API answers")
        yield
        assert process.poll() is None, f"The API ended by itself:\n{(home / 'api.log').read_text()}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def api(api_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of this process point to the running API."""
    return use_home(api_home, monkeypatch)


@pytest.fixture(scope="session")
def up_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What `stoker up --detach` starts, with the dataset `waves`; ended by `stoker down`."""
    home = tmp_path_factory.mktemp("up") / "home"
    write_waves(home / "data" / "waves.h5")
    started = stoker(home, "up", "--detach", "--json")
    assert started.code == 0, started.err
    try:
        registered = stoker(home, "data", "register", "waves", "waves.h5")
        assert registered.code == 0, registered.err
        yield home
    finally:
        ended = stoker(home, "down")
        assert ended.code == 0, ended.err


@pytest.fixture
def up(up_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of this process point to the running service."""
    return use_home(up_home, monkeypatch)


@pytest.fixture(scope="session")
def finished_run(up_home: Path) -> dict[str, Any]:
    """A run that has succeeded; tests only look at it."""
    spec = up_home / "spec.json"
    spec.write_text(json.dumps(SPEC))
    submitted = stoker(up_home, "submit", str(spec), "--json")
    assert submitted.code == 0, submitted.err
    run: dict[str, Any] = submitted.document
    watched = stoker(up_home, "watch", str(run["id"]))
    assert watched.code == 0, watched.err + watched.out
    return run


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))
    return path


@pytest.fixture
def run_id(cli, api, spec_file) -> int:
    """A new run; without a worker it stays queued."""
    run_id: int = cli("submit", str(spec_file), "--json").document["id"]
    return run_id


@pytest.fixture
def long_spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "long.json"
    path.write_text(json.dumps(LONG))
    return path


def wait_for_training(run_id: int) -> None:
    """Return when the run has done its first steps."""
    with Client() as client:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            run = client.run(run_id)
            if ((run["progress"] or {}).get("step") or 0) > 0:
                return
            assert run["state"] in ("queued", "running"), run
            time.sleep(0.05)
    raise AssertionError("the run did not begin to train")


def _answers(home: Path) -> bool:
    with Client(json.loads((home / "api.json").read_text())["url"]) as client:
        try:
            client.version()
        except Exception:  # noqa: BLE001 - not yet, or it wants a token: then it answers
            return (home / "token").exists()
        return True


def _declare_ready(home: Path) -> None:
    """What a worker and its inspection would write, where there is no worker."""
    from sqlalchemy import update

    from app.settings import load_settings
    from app.store import open_store
    from app.store.artifact_root import ArtifactRoot
    from app.store.tables import datasets

    settings = load_settings(home=home)
    store = open_store(settings)
    ArtifactRoot(store.database, settings.artifact_root).look()
    store.datasets.register("waves", "waves.h5")
    fields = {
        "features": {"shape": [24, 3], "dtype": "float32"},
        "targets": {"shape": [4], "dtype": "float32"},
    }
    found = {"fields": fields, "samples": 600, "size_bytes": 200_000}
    with store.database.write() as connection:
        connection.execute(update(datasets).values(state="ready", **found))
    store.close()
