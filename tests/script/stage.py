"""An attempt of a script as the agent lays it out, and its runner as a real process."""

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from app.inherited import Inherited
from app.settings import load_settings
from worker.kept import forget, keep
from worker.start.scripts import COMMAND, path_folder

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def spec_json(cwd: Path, policy: dict[str, Any] | None = None, **recipe: Any) -> dict[str, Any]:
    """The spec.json of a first attempt; `recipe` and `policy` say what is unusual."""
    usual: dict[str, Any] = {
        "like": None, "resume": [], "checkpoints": [], "stop_signal": "SIGTERM",
        "grace_seconds": 20.0, "shim": True, "metrics": {"file": None, "stdout": None},
    }  # fmt: skip
    limits = {"max_duration_seconds": None, "hang_timeout_seconds": None}
    return {
        "run_id": 1, "attempt": 1, "run_dir": str(cwd), "cwd": str(cwd), "gpus": [],
        "argv": [sys.executable, "train.py"], "environment_file": None, "path_folder": str(cwd),
        "restore": [], "has_saved": False,
        "spec": {"recipe": {**usual, **recipe}, "policy": {**limits, **(policy or {})}},
    }  # fmt: skip


class Stage:
    """One run's folder and the script's own."""

    def __init__(self, root: Path) -> None:
        self.run_folder = root / "runs" / "1"
        self.cwd = root / "project"
        self.cwd.mkdir(parents=True)
        home = root / "home"
        home.mkdir()
        self.path_folder = path_folder(load_settings(home=home).home)
        self.processes: list[subprocess.Popen[bytes]] = []

    def attempt(self, number: int = 1) -> Path:
        return self.run_folder / f"attempt-{number}"

    def write(self, code: str, name: str = "train.py") -> None:
        (self.cwd / name).write_text(code)

    def start(
        self,
        *argv: str,
        attempt: int = 1,
        environment: dict[str, str] | None = None,
        restore: tuple[Path, ...] = (),
        policy: dict[str, Any] | None = None,
        code: dict[str, Any] | None = None,
        of_shell: dict[str, Any] | None = None,
        stdin: bytes | None = None,
        ignored: tuple[signal.Signals, ...] = (),
        **recipe: Any,
    ) -> "subprocess.Popen[bytes]":
        """Start the runner; `python train.py` unless `argv` says otherwise. `ignored`: signals that
        the runner is started with as ignored.
        """
        folder = self.attempt(attempt)
        folder.mkdir(parents=True)
        kept = self.cwd.parent / "environment.json"
        forget(kept)  # of the attempt before
        asked: dict[str, Any] = {"shell": of_shell}
        if stdin is not None:
            usual = Inherited.here().document()
            asked = {"shell": of_shell or usual, "stdin": b64encode(stdin).decode()}
        keep(kept, {"PATH": os.environ["PATH"], **(environment or {})}, asked)
        document = spec_json(self.cwd, policy, **recipe) | {
            "attempt": attempt, "run_dir": str(self.run_folder), "environment_file": str(kept),
            "argv": list(argv) or [sys.executable, "train.py"],
            "path_folder": str(self.path_folder), "has_saved": bool(restore),
            "restore": [{"path": str(path)} for path in restore], "code": code,
        }  # fmt: skip
        (folder / "spec.json").write_text(json.dumps(document))
        with (folder / "trainer.log").open("wb") as log:
            process = subprocess.Popen(
                [*COMMAND, str(folder)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log, stderr=log,
                preexec_fn=lambda: [signal.signal(one, signal.SIG_IGN) for one in ignored],
            )  # fmt: skip
        self.processes.append(process)
        return process

    def run(self, *argv: str, **more: Any) -> dict[str, Any]:
        """To its end, which is told."""
        self.start(*argv, **more).wait(PATIENCE)
        return self.end(more.get("attempt", 1))

    def stop(self, runner: "subprocess.Popen[bytes]", attempt: int = 1) -> dict[str, Any]:
        """Ask it to stop, as the launcher does, and await its end, which is told."""
        runner.send_signal(signal.SIGTERM)
        runner.wait(PATIENCE)
        return self.end(attempt)

    def events(self, kind: str | None = None, attempt: int = 1) -> list[dict[str, Any]]:
        """Of a kind, or all."""
        path = self.attempt(attempt) / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["kind"])]

    def end(self, attempt: int = 1) -> dict[str, Any]:
        (end,) = self.events("end", attempt)
        return end

    def log(self, attempt: int = 1) -> str:
        return (self.attempt(attempt) / "trainer.log").read_text()

    def log_bytes(self, attempt: int = 1) -> bytes:
        return (self.attempt(attempt) / "trainer.log").read_bytes()

    def until_log_has(self, text: str, attempt: int = 1) -> None:
        self.until(lambda: text in self.log(attempt), f"{text!r} is in the log", attempt)

    def until(self, happened: Callable[[], object], what: str, attempt: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"{what}: no. {self.log(attempt)}"
            time.sleep(0.05)

    def curve(self, name: str, attempt: int = 1) -> dict[int, float]:
        return {
            event["step"]: event["values"][name]
            for event in self.events("metrics", attempt)
            if name in event["values"]
        }

    def end_all(self) -> None:
        """What the launcher does when the runner is gone: nothing of the script lives on."""
        for process in psutil.process_iter(["cwd"]):
            if process.info["cwd"] == str(self.cwd):
                process.kill()
                process.wait(10)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE)
