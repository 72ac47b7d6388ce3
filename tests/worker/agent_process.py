"""Agents whose trainers are fake: the product's agent with another command to start.

Forks one for each line of stdin, `{"environment": {...}, "log": PATH}`, and answers with its pid;
to `{"poll": PID}` with how it ended, or null. To import what an agent needs takes a second of a
core, so that is done once for all of them.

FAKE_TRAINER: another one to start; FAKE_DRIVER: a path whose presence is a loaded NVIDIA driver;
REMOVAL_OPENS: a FIFO that is opened before a checkpoint is removed; PROBE_SECONDS: how long a
measurement may last; PULSE_UNREADABLE: no trainer's can be read; STARTUP_SECONDS: a trainer without
a pulse; SPEC_VERSION: the newest that it understands; ROOT_SLOW_WHILE: a path during whose presence
a look at the artifact root takes half a second.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from app.settings import load_settings
from app.store import artifact_root
from worker.agent import attempt_folder as attempt
from worker.agent import checkpoint_folders as checkpoints
from worker.agent import devices, watchdog
from worker.agent.agent import run_agent
from worker.jobs import probing
from worker.telemetry import gpus as telemetry
from worker.telemetry import host


def be_an_agent() -> int:
    fake_trainer = str(Path(__file__).parent / "fake_trainer.py")
    command = [sys.executable, fake_trainer]
    if "FAKE_TRAINER" in os.environ:
        command = [os.environ["FAKE_TRAINER"]]
    if "FAKE_DRIVER" in os.environ:
        telemetry.DRIVER_SIGNS = (Path(os.environ["FAKE_DRIVER"]),)
        devices.FIRST_PROBE_SECONDS = 0.2
    if "STARTUP_SECONDS" in os.environ:
        watchdog.STARTUP_SECONDS = float(os.environ["STARTUP_SECONDS"])
    if "REMOVAL_OPENS" in os.environ:
        remove = checkpoints.remove

        def remove_late(path: Path) -> None:
            Path(os.environ["REMOVAL_OPENS"]).read_bytes()  # a FIFO: until somebody writes
            remove(path)

        checkpoints.remove = remove_late
    if "PULSE_UNREADABLE" in os.environ:
        create = attempt.AttemptDir.create

        def create_broken(self: attempt.AttemptDir, spec: attempt.Document) -> None:
            create(self, spec)
            (self.path / "pulse").symlink_to("pulse")

        setattr(attempt.AttemptDir, "create", create_broken)  # noqa: B010 - mypy knows methods
    if "PROBE_SECONDS" in os.environ:
        probing.PROBE_SECONDS = float(os.environ["PROBE_SECONDS"])
    if "SPEC_VERSION" in os.environ:
        vars(host)["SPEC_VERSION"] = int(os.environ["SPEC_VERSION"])
    make_root_slow(Path(os.environ.get("ROOT_SLOW_WHILE", "/nowhere")))
    return run_agent(load_settings(), trainer_command=command)


def make_root_slow(sign: Path) -> None:
    is_marked = artifact_root.is_marked

    def is_marked_slowly(root: Path, database_id: str) -> bool:
        time.sleep(0.5 if sign.exists() else 0.0)
        return is_marked(root, database_id)

    artifact_root.is_marked = is_marked_slowly


def fork(environment: dict[str, str], log: str) -> int:
    """A child with this environment that writes to this log; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        code = be_an_agent()
    except BaseException:  # noqa: BLE001 - as at the end of any process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def answer(order: dict[str, Any]) -> int | None:
    if "poll" not in order:
        return fork(**order)
    pid, status = os.waitpid(order["poll"], os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()
