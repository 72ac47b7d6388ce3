"""Agents whose trainers are fake: the product's agent with another command to start.

To be forked: see `tests/forking.py`. Variables of the environment say what is unusual.

FAKE_TRAINER: another one to start; FAKE_DRIVER: a path whose presence is a loaded NVIDIA driver;
REMOVAL_OPENS: a FIFO that is opened before a checkpoint is removed; REMOVAL_SECONDS: how long the
end of an attempt waits for that; PROBE_SECONDS: how long a measurement may last; PULSE_UNREADABLE:
no trainer's can be read; STARTUP_SECONDS: a trainer without a pulse; SPEC_VERSION: the newest that
it understands; ROOT_SLOW_WHILE: a path during whose presence a look at the artifact root takes half
a second; ANSWER_SECONDS: how long a launcher has to end.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from app.settings import load_settings
from app.store import artifact_root
from tests.forking import serve
from worker.agent import attempt_folder as attempt
from worker.agent import checkpoint_folders as checkpoints
from worker.agent import devices, retention, watchdog
from worker.agent.agent import run_agent
from worker.jobs import probing
from worker.launch import local
from worker.telemetry import gpus as telemetry
from worker.telemetry import host

# Whose constant of that name a test may set.
PATIENCE = {
    "ANSWER_SECONDS": local,
    "STARTUP_SECONDS": watchdog,
    "PROBE_SECONDS": probing,
    "REMOVAL_SECONDS": retention,
}


# Functions on checkpoints that first read the file that a variable names. A FIFO holds them up
# until somebody writes.
HELD_UP = {"REMOVAL_OPENS": "remove", "MANIFEST_OPENS": "read_regular"}


def be_an_agent() -> int:
    fake_trainer = str(Path(__file__).parent / "fake_trainer.py")
    command = [sys.executable, fake_trainer]
    if "FAKE_TRAINER" in os.environ:
        command = [os.environ["FAKE_TRAINER"]]
    if "FAKE_DRIVER" in os.environ:
        telemetry.DRIVER_SIGNS = (Path(os.environ["FAKE_DRIVER"]),)
        devices.FIRST_PROBE_SECONDS = 0.2
    for name in PATIENCE.keys() & os.environ.keys():
        setattr(PATIENCE[name], name, float(os.environ[name]))
    for name, function in HELD_UP.items():
        if name in os.environ:
            hold_up(function, Path(os.environ[name]))
    if "PULSE_UNREADABLE" in os.environ:
        create = attempt.AttemptDir.create

        def create_broken(self: attempt.AttemptDir, spec: attempt.Document) -> None:
            create(self, spec)
            (self.path / "pulse").symlink_to("pulse")

        setattr(attempt.AttemptDir, "create", create_broken)  # noqa: B010 - mypy knows methods
    if "SPEC_VERSION" in os.environ:
        vars(host)["SPEC_VERSION"] = int(os.environ["SPEC_VERSION"])
    make_root_slow(Path(os.environ.get("ROOT_SLOW_WHILE", "/nowhere")))
    return run_agent(load_settings(), trainer_command=command)


def hold_up(function: str, path: Path) -> None:
    called = getattr(checkpoints, function)

    def call_late(*arguments: Any) -> Any:
        path.read_bytes()
        return called(*arguments)

    setattr(checkpoints, function, call_late)


def make_root_slow(sign: Path) -> None:
    is_marked = artifact_root.is_marked

    def is_marked_slowly(root: Path, database_id: str) -> bool:
        time.sleep(0.5 if sign.exists() else 0.0)
        return is_marked(root, database_id)

    artifact_root.is_marked = is_marked_slowly


if __name__ == "__main__":
    serve({"agent": be_an_agent})
