"""A service, and `stoker` as it is typed in the folder of a project."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.service import Service, eventually


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
        done = subprocess.run(
            [sys.executable, "-P", "-m", "app.cli", *words],
            cwd=self.project,
            env={**self.service.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def run_command(self, *words: str, command: tuple[str, ...]) -> dict[str, Any]:
        """The run that `stoker run WORDS -- COMMAND` makes."""
        document: dict[str, Any] = json.loads(self.stoker("run", "--json", *words, "--", *command))
        return document

    def log(self, run_id: int) -> str:
        return self.stoker("logs", str(run_id))

    def until_log_has(self, run_id: int, text: str) -> None:
        """Fails where the run ends without having said so."""

        def has() -> bool:
            over = self.service.run(run_id)["state"] not in ("queued", "running")
            log = self.log(run_id)
            assert text in log or not over, f"{text!r} is not in {log}"
            return text in log

        eventually(has, f"{text!r} is in the log of run {run_id}")

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
