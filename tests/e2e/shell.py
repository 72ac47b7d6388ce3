"""A service, and `stoker` as it is typed in the folder of a project."""

import json
import os
from collections.abc import Mapping
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from typer.testing import CliRunner, Result

from app.cli.main import app
from tests.e2e.service import Service, eventually

ROOT = Path(__file__).parents[2]
END_BYTES = 2**16


def typed(folder: Path, environment: Mapping[str, str], *words: str) -> Result:
    """`stoker WORDS` in this process, as typed in a folder where these variables alone are set."""
    with chdir(folder), patch.dict(os.environ, environment, clear=True):
        done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception  # users see a sentence for it; here it is a defect
    return done


class Shell:
    """API and agent with a home of their own; `settings`: the text of its stoker.toml;
    `environment`: of both.
    """

    def __init__(self, root: Path, settings: str = "", **environment: str) -> None:
        self.project = root / "project"
        self.project.mkdir(parents=True, exist_ok=True)
        home = root / "home"
        home.mkdir()
        (home / "stoker.toml").write_text(settings)
        self.service = Service(home, **environment)
        self.service.start_api()
        self.agent = self.service.start_agent()

    def stoker(self, *words: str, code: int = 0) -> str:
        """What the command says: its output, or its errors where `code` is another one."""
        environment = {**self.service.environment, "PYTHONPATH": str(ROOT)}
        done = typed(self.project, environment, *words)
        assert done.exit_code == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def run_command(self, *words: str, command: tuple[str, ...]) -> dict[str, Any]:
        """The run that `stoker run WORDS -- COMMAND` makes."""
        document: dict[str, Any] = json.loads(self.stoker("run", "--json", *words, "--", *command))
        return document

    def log(self, run_id: int) -> str:
        """Of all attempts; asked for by HTTP, since it is waited for."""
        text, after = "", 0
        while True:
            answer = self.service.http.get(f"/runs/{run_id}/logs", params={"after": after}).json()
            if not answer["text"]:
                return text
            text, after = text + answer["text"], answer["next_offset"]

    def until_log_has(self, run_id: int, text: str) -> None:
        """Fails where the run ends without having said so."""

        def has() -> bool:
            over = self.service.run(run_id)["state"] not in ("queued", "running")
            log = self.log(run_id)
            assert text in log or not over, f"{text!r} is not in {log}"
            return text in log

        eventually(has, f"{text!r} is in the log of run {run_id}")

    def said(self, run_id: int) -> str:
        """The end of what its newest attempt has printed, read where it lies: no command starts."""
        attempt = self.service.run(run_id)["attempt"]
        newest = self.service.home / f"artifacts/runs/{run_id}/attempt-{attempt}/trainer.log"
        if not newest.exists():
            return ""
        with newest.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - END_BYTES))
            return file.read().decode(errors="replace")

    def until_said(self, run_id: int, text: str) -> None:
        eventually(lambda: text in self.said(run_id), f"run {run_id} says {text!r}")

    def processes_of(self, run_id: int) -> list[psutil.Process]:
        """Those of the script that live, wherever they went: they have its run in their
        environment.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                told = process.environ()
                is_ours = told.get("STOKER_RUN_DIR", "").startswith(str(self.service.home))
                if is_ours and told["STOKER_RUN_ID"] == str(run_id):
                    found.append(process)
        return found

    def messages(self, run_id: int, kind: str) -> list[str]:
        """Of all its events of a kind."""
        events = self.service.http.get(f"/runs/{run_id}/events").json()["data"]
        return [event["data"].get("message", "") for event in events if event["kind"] == kind]

    def curve(self, run_id: int, name: str = "train_loss") -> dict[int, float]:
        answer = self.service.http.get(f"/runs/{run_id}/metrics", params={"names": name})
        return {step: value for step, _, value in answer.json()["series"].get(name, [])}

    def checkpoints(self, run_id: int) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = self.service.http.get(f"/runs/{run_id}/checkpoints").json()[
            "data"
        ]
        return data

    def end_all(self) -> None:
        """A test that fails leaves no run behind that those after it would wait for."""
        for state in ("queued", "running"):
            for run in self.service.http.get("/runs", params={"state": state}).json()["data"]:
                self.service.http.post(f"/runs/{run['id']}/kill", params={"wait": 30})
