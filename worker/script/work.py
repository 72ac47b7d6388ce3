"""What a script is told: its command line, its environment, and the folder to find Stoker in."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, Self

from app.inherited import Inherited
from stoker.script import CHECKPOINT, STEP
from worker.kept import STDIN, Kept

# What a registered command sees of the worker's environment.
OF_THE_HOST = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "TZ"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE"),
)
SHIM = Struct("<QdQQQ")
"""Steps, seconds of waiting for data, the process that counts, steps that are not counted, and the
step at the last torch.save: path/sitecustomize.py.
"""


HELD_STOP = ".stop"


class Start(NamedTuple):
    """What the script goes on from."""

    folder: Path
    """The checkpoint, as Stoker keeps it."""
    kept: Path
    """The file or folder in it that is like the one that the script saved."""
    path: Path
    """What the script is given: its own save while that is as it was kept, else `kept`."""

    @property
    def step(self) -> int:
        return int(self.folder.name.removeprefix("step-"))


@dataclass(frozen=True)
class ScriptWork:
    """The attempt, as spec.json has it; `restore` are checkpoints to try, the newest first."""

    folder: Path
    run_id: int
    attempt: int
    run_folder: Path
    argv: tuple[str, ...]
    cwd: Path
    resume: tuple[str, ...]
    checkpoints: tuple[str, ...]
    like: str | None
    stop_signal: str
    grace_seconds: float
    max_duration_seconds: float | None
    hang_timeout_seconds: float | None
    shim: bool
    metrics_file: Path | None
    metrics_stdout: str | None
    environment_file: Path | None
    path_folder: Path
    """Holds `stoker` and `sitecustomize.py`; it goes before the script's own PYTHONPATH."""
    gpus: tuple[str, ...]
    """UUIDs of the GPUs that the script may see."""
    restore: tuple[Path, ...] = field(default=())
    code: dict[str, Any] | None = None
    """The code as it was when it was submitted; see app.service.scripts.Admission."""
    has_saved: bool = False
    """Whether the run has saved checkpoints before, in this attempt's past."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """From spec.json. OSError, ValueError, KeyError."""
        document = json.loads((folder / "spec.json").read_text())
        recipe, policy = document["spec"]["recipe"], document["spec"]["policy"]
        environment, metrics = document["environment_file"], recipe["metrics"]
        cwd = Path(document["cwd"])
        return cls(
            folder=folder,
            run_id=document["run_id"],
            attempt=document["attempt"],
            run_folder=Path(document["run_dir"]),
            argv=tuple(document["argv"]),
            cwd=cwd,
            resume=tuple(recipe["resume"]),
            checkpoints=tuple(recipe["checkpoints"]),
            like=recipe["like"],
            stop_signal=recipe["stop_signal"],
            grace_seconds=recipe["grace_seconds"],
            max_duration_seconds=policy["max_duration_seconds"],
            hang_timeout_seconds=policy["hang_timeout_seconds"],
            shim=recipe["shim"],
            metrics_file=None if metrics["file"] is None else cwd / metrics["file"],
            metrics_stdout=metrics["stdout"],
            environment_file=None if environment is None else Path(environment),
            path_folder=Path(document["path_folder"]),
            gpus=tuple(document["gpus"]),
            restore=tuple(Path(one["path"]) for one in document["restore"]),
            has_saved=document["has_saved"],
            code=document.get("code"),
        )

    @property
    def checkpoints_folder(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    def hold_stop_file(self) -> None:
        """Make it ahead, under another name: a disk that is full by then has no room for one.
        OSError.
        """
        self.stop_file.with_name(HELD_STOP).touch()

    def show_stop_file(self) -> None:
        """OSError where that cannot be done."""
        try:
            self.stop_file.with_name(HELD_STOP).rename(self.stop_file)
        except FileNotFoundError:
            self.stop_file.touch()

    @property
    def shim_file(self) -> Path:
        return self.folder / "shim"

    def command(self, start: Start | None) -> list[str]:
        """The arguments; those of `resume` follow where there is a checkpoint to go on from."""
        if start is None:
            return list(self.argv)
        named = {CHECKPOINT: str(start.path), STEP: str(start.step)}
        places = re.compile("|".join(map(re.escape, named)))
        resumed = [places.sub(lambda place: named[place[0]], part) for part in self.resume]
        return [*self.argv, *resumed]

    def environment(
        self, given: Mapping[str, str], start: Start | None, status: tuple[str, Path]
    ) -> dict[str, str]:
        """`given` and what a script finds inside a run; `status`: URL and token file of the route
        for the trainer's status.
        """
        url, token_file = status
        named = {
            "STOKER_RUN_ID": str(self.run_id),
            "STOKER_ATTEMPT": str(self.attempt),
            "STOKER_RUN_DIR": str(self.folder),
            "STOKER_CHECKPOINT_DIR": str(self.checkpoints_folder),
            "STOKER_STOP_FILE": str(self.stop_file),
            "STOKER_GRACE_SECONDS": f"{self.grace_seconds:g}",
            "STOKER_STOP_SIGNAL": self.stop_signal,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.grace_seconds) - 5)),
            "KUBEFLOW_TRAINER_SERVER_URL": url,
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token_file),
            "TENSORBOARD_LOGGING_DIR": str(self.folder / "tensorboard"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(
                part for part in (str(self.path_folder), given.get("PYTHONPATH")) if part
            ),
            "NO_PROXY": _with_loopback(given.get("NO_PROXY") or given.get("no_proxy")),
            "no_proxy": _with_loopback(given.get("no_proxy") or given.get("NO_PROXY")),
        }
        if start is not None:
            named["STOKER_RESUME_FROM"] = str(start.path)
        if self.metrics_file is not None:
            named["STOKER_METRICS_FILE"] = str(self.metrics_file)
        if self.shim:
            named["STOKER_SHIM_FILE"] = str(self.shim_file)
        kept = {name: value for name, value in given.items() if not name.startswith("STOKER_")}
        return {**kept, **named}

    @property
    def has_stdin(self) -> bool:
        """True where something was piped to `stoker run`."""
        kept = self.environment_file
        return kept is not None and kept.with_suffix(STDIN).exists()

    def kept(self) -> Kept:
        """Returns what was kept with the command, or else what this process has. OSError,
        ValueError.
        """
        if self.environment_file is None:
            of_the_host = {name: os.environ[name] for name in OF_THE_HOST if name in os.environ}
            return Kept(of_the_host, Inherited(), None)
        return Kept.read(self.environment_file)


def _with_loopback(given: str | None) -> str:
    parts = [part for part in (given or "").split(",") if part]
    return ",".join(dict.fromkeys([*parts, "127.0.0.1", "localhost"]))
